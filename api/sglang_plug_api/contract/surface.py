"""Descriptions of the public contract: one JSON file per version, written by ``docs/generate_contract_version.py``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from sglang_plug import PluginError

VERSIONS = Path(__file__).with_name("versions")
NUMBER = re.compile(r"\d+\.\d+")
HOOKS = "hooks"
"""The prefix of hooks among the names of a surface: ``hooks.register_models``."""


@dataclass(frozen=True, slots=True)
class Member:
    """A field, property or method of a public class."""

    kind: Literal["field", "property", "method"]
    text: str = ""
    """The signature of a method without its name, the type of a field or property."""
    default: str | None = None
    required: bool = False
    """True if every implementation of the class must define it."""
    deprecated: str = ""
    """The text of its deprecation warning; empty if it is not deprecated."""


@dataclass(frozen=True, slots=True)
class Item:
    """A public class, function, hook or value, or an earlier name of one."""

    kind: Literal["class", "function", "hook", "value", "renamed"]
    text: str = ""
    """The signature of a function or hook, the source of a value, the present name of what was renamed."""
    form: Literal["class", "dataclass", "model", "protocol"] = "class"
    """``model`` is a class that pydantic or msgspec makes from its fields."""
    provided: bool = False
    """True for a class that plugins receive but neither define nor create, except in their tests."""
    bases: tuple[str, ...] = ()
    """Full names of public bases, and the names of bases from other libraries."""
    targets: tuple[str, ...] = ()
    """Full names of the public classes that the target of a spec implements or is given."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """Members by name, without those of public bases."""
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that a plugin may use, in one version of the contract."""

    contract: str
    """Major and minor number: ``1.0``."""
    routes: int
    """Version of the part for routes, ``sglang_plug_api.plugin``."""
    items: Mapping[str, Item]
    """Full name, such as ``sglang_plug.Model`` or ``hooks.register_models`` -> what it is."""
    released: str | None = None
    """The version of sglang-plug that was released with it; ``None`` while it may change."""

    def ancestors(self, name: str) -> Iterator[str]:
        """Yield the full names of a class and of its public bases, each once."""
        pending, known = [name], set[str]()
        while pending:
            current = pending.pop()
            if current in self.items and current not in known:
                known.add(current)
                yield current
                pending += self.items[current].bases

    def is_implementable(self, name: str) -> bool:
        """Report whether plugins define subclasses of a class, or classes like it."""
        item = self.items[name]
        if item.provided or item.form in ("dataclass", "model"):
            return False
        return item.form == "protocol" or any(
            member.required for ancestor in self.ancestors(name) for member in self.items[ancestor].members.values()
        )


SURFACE = TypeAdapter(Surface)


def version_numbers() -> list[str]:
    """Return the described versions, in ascending order."""
    names = (file.stem for file in VERSIONS.glob("*.json") if NUMBER.fullmatch(file.stem))
    return sorted(names, key=version_key)


def version_key(number: str) -> tuple[int, ...]:
    """Return a version's numbers for comparisons."""
    return tuple(int(part) for part in number.split("."))


def read_surface(version: str) -> Surface:
    """Read the description of a version, or a file in the same format.

    Raises ``PluginError`` if there is none, or if the file cannot be read.
    """
    is_number = NUMBER.fullmatch(version) is not None
    file = VERSIONS / f"{version}.json" if is_number else Path(version)
    if not file.is_file():
        known = ", ".join(version_numbers())
        kind = "version of the contract" if is_number else "file or version of the contract"
        raise PluginError(f"there is no {kind} {version!r}; known versions: {known}")
    try:
        return SURFACE.validate_json(file.read_bytes(), strict=False)
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise PluginError(f"{str(file)!r} does not describe a version of the contract: {reason}") from error


def surface_text(surface: Surface) -> str:
    """Return the content of the JSON file that describes a surface, with one line for each member."""
    plain: Any = SURFACE.dump_python(surface, mode="json", exclude_defaults=True)
    items = ",\n".join(_item_text(name, item) for name, item in sorted(plain.pop("items").items()))
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in plain.items())
    return f'{{\n{head} "items": {{\n{items}\n }}\n}}\n'


def _item_text(name: str, item: dict[str, Any]) -> str:
    members = item.pop("members", {})
    lines = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(members.items())]
    text = json.dumps(item)
    if lines:
        joined = ",\n".join(lines)
        text = f'{text[:-1]}, "members": {{\n{joined}\n  }}}}'
    return f"  {json.dumps(name)}: {text}"
