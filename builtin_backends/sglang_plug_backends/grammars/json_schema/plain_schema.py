"""Normalisation of callers' schemas to the assertions of JSON Schema 2020-12.

Annotations are dropped, whatever their values look like, and OpenAPI's ``nullable`` and ``discriminator`` are rewritten
in terms of ``type``, ``enum``, ``anyOf`` and ``required``. Every grammar backend reads schemas in this form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from sglang_plug_backends.grammars.refusal import Refusal

from .discriminator import select_branches
from .keywords import restricts
from .references import Target, find_target

MAX_DEPTH = 64
MAX_NODES = 10_000
SINGLE = frozenset({"items", "additionalProperties"})
"""Keywords that hold a schema."""
LISTS = frozenset({"prefixItems", "anyOf", "oneOf", "allOf"})
"""Keywords that hold a list of schemas."""
NAMED = frozenset({"properties", "patternProperties"})
"""Keywords that hold schemas by name."""
COMBINED = frozenset({"const", "$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"})
"""Keywords that may forbid ``null`` regardless of ``type``."""
DEFINITIONS = "#/$defs/"
MAX_SHOWN = 80
"""Maximum characters of a name that are repeated in paths."""


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """A schema without annotations. All referenced schemas are in its ``$defs``."""

    schema: Any
    origins: Mapping[str, str] = field(default_factory=dict)
    """Pointer of a definition -> the path in the original schema that it was made from."""

    def origin(self, pointer: str) -> str:
        """Return the path in the original schema that ``pointer`` stands for."""
        return self.origins.get(pointer, pointer)


def plain_schema(root: Any) -> PlainSchema:
    """Rewrite the schema ``root``. Raises ``Refusal`` for references that lead nowhere and for schemas too large."""
    return _Rewriter(root).rewrite()


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield ``(path, container, key, subschema)`` for each schema directly below ``schema``."""
    for keyword, value in schema.items():
        if keyword in SINGLE:
            yield keyword, schema, keyword, value
        elif keyword in LISTS and isinstance(value, list):
            yield from ((f"{keyword}/{index}", value, index, item) for index, item in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from ((f"{keyword}/{name[:MAX_SHOWN]}", value, name, item) for name, item in value.items())


@dataclass(frozen=True, slots=True)
class _Task:
    """A schema that is still to be rewritten."""

    target: Target
    depth: int
    container: Any
    key: Any
    """Key of the result: ``container[key]`` is set to it."""


class _Rewriter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._tasks: list[_Task] = []
        self._definitions: dict[str, Any] = {}
        self._pointers: dict[int, str] = {}
        """Identity of a schema -> pointer of its definition."""
        self._kept: list[Any] = []
        """Schemas whose identities are used as keys and which must therefore stay alive."""
        self._narrowed: dict[Any, Target] = {}
        self._origins: dict[str, str] = {}

    def rewrite(self) -> PlainSchema:
        """Rewrite all schemas, one task for each, because references may lead back to any of them."""
        result: dict[str, Any] = {}
        self._tasks.append(_Task(Target(self._root, "#", self._root), 0, result, "root"))
        count = 0
        while self._tasks:
            task = self._tasks.pop()
            count += 1
            if task.depth > MAX_DEPTH or count > MAX_NODES:
                path = task.target.path[:MAX_SHOWN]
                raise Refusal(f"the schema is too large at {path}: at most {MAX_DEPTH} levels, {MAX_NODES} parts")
            task.container[task.key] = self._rewritten(task)
        schema = result["root"]
        if self._definitions:
            schema = {**schema, "$defs": self._definitions}
        return PlainSchema(schema, self._origins)

    def _rewritten(self, task: _Task) -> Any:
        if not isinstance(task.target.schema, dict):
            return task.target.schema
        schema = select_branches(task.target, self._follow, self._narrowed)
        plain = {key: value for key, value in schema.items() if restricts(key, schema)}
        if schema.get("nullable") is True:
            plain = self._nullable(plain, task.target)
        if "$ref" in plain:
            plain["$ref"] = self._pointer(self._follow(plain["$ref"], task.target))
        if isinstance(plain.get("items"), list):
            raise Refusal(f"{task.target.path}/items must be a schema; a list of schemas is called prefixItems")
        for keyword in (LISTS | NAMED) & plain.keys():
            plain[keyword] = copy(plain[keyword])  # its members are about to be replaced
        for path, container, key, item in subschemas(plain):
            self._tasks.append(_Task(task.target.child(item, path), task.depth + 1, container, key))
        return plain

    def _nullable(self, plain: dict[str, Any], target: Target) -> dict[str, Any]:
        """Return a schema that allows ``null`` and what ``plain`` allows."""
        if not plain:
            return plain
        if COMBINED & plain.keys() or not {"enum", "type"} & plain.keys():
            return {"anyOf": [{"$ref": Target(plain, target.path, target.resource)}, {"type": "null"}]}
        enum, types = plain.get("enum"), plain.get("type")
        if isinstance(enum, list) and None not in enum:
            plain = {**plain, "enum": [*enum, None]}
        if isinstance(types, str) and types != "null":
            plain = {**plain, "type": [types, "null"]}
        elif isinstance(types, list) and "null" not in types:
            plain = {**plain, "type": [*types, "null"]}
        return plain

    def _follow(self, reference: Any, where: Target) -> Target:
        return find_target(self._root, reference, where)

    def _pointer(self, target: Target) -> str:
        """Return the pointer of the definition that stands for ``target``."""
        if target.schema is self._root:
            return "#"
        known = self._pointers.get(id(target.schema))
        if known is not None:
            return known
        name = str(len(self._origins))
        pointer = f"{DEFINITIONS}{name}"
        self._origins[pointer] = target.path
        if isinstance(target.schema, dict):  # other values have no identity
            self._pointers[id(target.schema)] = pointer
            self._kept.append(target.schema)
        self._definitions[name] = None  # in the order of the references
        self._tasks.append(_Task(target, 0, self._definitions, name))
        return pointer
