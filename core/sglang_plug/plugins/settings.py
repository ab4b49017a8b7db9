"""Typed settings of one component, from ``--set name.key=value``, YAML or the environment.

A component's settings class is a dataclass or a ``msgspec.Struct``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sglang_plug.config import ConfigError
from sglang_plug.system.field_errors import field_error
from sglang_plug.system.hints import nearest_names

SHOWN = 40
"""Maximum number of characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings class."""

    name: str
    type: str
    """The field's type, as in source code."""
    default: Any
    required: bool
    """True if there is no default."""


def is_settings_class(kind: Any) -> bool:
    """Report whether ``kind`` is a class that settings can be declared with."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def settings_fields(kind: Any) -> list[Setting]:
    """Return the fields of a settings class, by the names that ``--set`` takes."""
    if issubclass(kind, msgspec.Struct):
        return [_setting(item, item.encode_name, msgspec.NODEFAULT) for item in msgspec.structs.fields(kind)]
    return [_setting(item, item.name, dataclasses.MISSING) for item in dataclasses.fields(kind) if item.init]


def parse_settings(kind: type, values: Mapping[str, Any], component: str) -> Any:
    """Return an instance of the settings class ``kind`` with ``values``, which may still be text.

    Raises ``ConfigError`` naming the component and key if a key is unknown or a value does not fit.
    """
    known = [item.name for item in settings_fields(kind)]
    for key in values:
        if key not in known:
            raise ConfigError(f"{component!r} has no setting {key!r}; {nearest_names(key, known, 'setting')}")
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"settings of {component!r}: {_explained(error, component, values)}") from error
    except Exception as error:  # the class is the plugin's: its own checks may fail in any way
        raise ConfigError(f"settings of {component!r}: {type(error).__name__}: {error}") from error


def _explained(error: Exception, component: str, values: Mapping[str, Any]) -> str:
    """Return what is wrong, with the value and the option that sets it."""
    problem = field_error(error)
    key = re.split(r"[.\[]", problem.path, maxsplit=1)[0]
    if not key:
        return str(problem)
    value = str(values.get(key, "VALUE"))
    return f"{problem} (--set {component}.{key}={value if len(value) <= SHOWN else 'VALUE'})"


def _setting(item: Any, name: str, missing: Any) -> Setting:
    required = item.default is missing and item.default_factory is missing
    default = item.default
    if default is missing:
        default = None if required else item.default_factory()
    return Setting(name, _written(item.type), default, required)


def _written(type_: Any) -> str:
    """Return a type as in source code."""
    if isinstance(type_, str):
        return type_
    return type_.__name__ if type(type_) is type else str(type_).replace("typing.", "")
