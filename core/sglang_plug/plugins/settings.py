"""Typed settings of one component, from ``--set name.key=value``, YAML or the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from sglang_plug.config import ConfigError


def parse_settings(kind: type, values: Mapping[str, Any], component: str) -> Any:
    """Return an instance of the dataclass ``kind`` with ``values``, which may still be text.

    Raises ``ConfigError`` naming the component and key if a key is unknown or a value does not fit.
    """
    known = [item.name for item in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            raise ConfigError(f"{component!r} has no setting {key!r}; {hint}")
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"settings of {component!r}: {error}") from error
