"""OpenAPI's ``discriminator``: a property whose value says which branch of a union holds.

Each branch is narrowed to values that have the property, with one of the branch's own tags. The branches of a ``oneOf``
then exclude each other wherever their tags do, so that it can be read as an ``anyOf``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .exclusive import canonical
from .keywords import restricts
from .references import MAX_SHOWN, Target

UNIONS = ("oneOf", "anyOf")
MAX_HOPS = 8
"""Maximum number of references and nested unions that are followed to a branch."""
Follow = Callable[[Any, Target], Target]
"""Resolver ``(reference, schema that contains it) -> schema``. Raises ``Refusal``."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """One narrowed member of a union."""

    schema: Any
    tags: Sequence[Any]
    """Values of the discriminating property that select this branch."""


@dataclass(frozen=True, slots=True)
class _Discriminator:
    """The ``discriminator`` of one schema and the lookup of its branches."""

    name: str
    mapping: Mapping[str, Any]
    follow: Follow
    narrowed: dict[Any, Target]
    """Narrowed schemas by their originals, so that recursive unions terminate."""
    unions: dict[int, _Branch | None] = field(default_factory=dict)
    """Unions within the union by identity."""


def select_branches(target: Target, follow: Follow, narrowed: dict[Any, Target]) -> dict[str, Any]:
    """Return the schema ``target`` with the branches of its union narrowed; unchanged if it has no discriminator."""
    schema: dict[str, Any] = target.schema
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    key = next((union for union in UNIONS if isinstance(schema.get(union), list) and schema[union]), None)
    if not isinstance(name, str) or key is None:
        return schema
    mapping = discriminator.get("mapping") if isinstance(discriminator, dict) else None
    by = _Discriminator(name, mapping if isinstance(mapping, dict) else {}, follow, narrowed)
    targets = [target.child(item, f"{key}/{index}") for index, item in enumerate(schema[key])]
    results = [_branch(by, branch_target, 0) for branch_target in targets]
    members = [item if branch is None else branch.schema for item, branch in zip(schema[key], results, strict=True)]
    selected = [branch for branch in results if branch is not None]
    result = {**schema, key: members}
    del result["discriminator"]
    if len(selected) < len(results):
        return result
    if result.get("type") == "object":  # every branch declares it
        del result["type"]
    if key == "oneOf" and "anyOf" not in result and _are_apart(selected):
        del result["oneOf"]
        result["anyOf"] = [  # messages name the position in oneOf, which a reference keeps
            {"$ref": branch_target} if member is branch_target.schema else member
            for branch_target, member in zip(targets, members, strict=True)
        ]
    return result


def _branch(by: _Discriminator, member: Target, hops: int) -> _Branch | None:
    """Narrow ``member``; ``None`` if no tag is known for it."""
    tags: list[str] = []
    implicit: list[str] = []
    target = member
    while isinstance(target.schema, dict) and hops <= MAX_HOPS:
        hops += 1
        assertions = _assertions(target.schema)
        if set(assertions) == {"$ref"}:
            target = by.follow(assertions["$ref"], target)
            name = target.path.rpartition("/")[2]
            tags += [tag for tag, value in by.mapping.items() if value in (target.path, name)]
            implicit = implicit or [name]
        elif set(assertions) == {"allOf"} and isinstance(assertions["allOf"], list) and len(assertions["allOf"]) == 1:
            target = target.child(assertions["allOf"][0], "allOf/0")
        elif len(key := assertions.keys() & set(UNIONS)) == 1 and set(assertions) - {"type"} == key:
            if id(target.schema) not in by.unions:
                by.unions[id(target.schema)] = None  # registered before its branches, which may lead back to it
                by.unions[id(target.schema)] = _nested(by, target, hops)
            return by.unions[id(target.schema)]
        else:
            return _narrowed(by, member.schema, target, tags, implicit)
    return None


def _nested(by: _Discriminator, target: Target, hops: int) -> _Branch | None:
    """Narrow each branch of a union within the union."""
    union = target.schema
    key = next(item for item in UNIONS if item in union)
    if not isinstance(union[key], list) or not union[key]:
        return None
    results = [_branch(by, target.child(item, f"{key}/{index}"), hops) for index, item in enumerate(union[key])]
    branches = [result for result in results if result is not None]
    if len(branches) < len(results):
        return None
    tags = [tag for branch in branches for tag in branch.tags]
    identity = (id(union), by.name, _texts(tags))
    if identity not in by.narrowed:
        by.narrowed[identity] = replace(target, schema={**union, key: [branch.schema for branch in branches]})
    return _Branch({"$ref": by.narrowed[identity]}, tags)


def _narrowed(
    by: _Discriminator, member: Any, target: Target, tags: Sequence[str], implicit: Sequence[str]
) -> _Branch | None:
    """Narrow the object ``target``: it must have the property with one of its tags."""
    schema = target.schema
    types, required = schema.get("type", "object"), schema.get("required", [])
    properties = schema.get("properties", {})
    if "object" not in (types if isinstance(types, list) else [types]):
        return None
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    if by.name not in properties and (not tags or schema.get("additionalProperties", True) is not True):
        return None
    declared = properties.get(by.name, {})
    narrowed = _tagged(by, declared, target, tags or (implicit if by.name in properties else ()))
    if narrowed is None:
        return None
    value, chosen = narrowed
    if value is declared and by.name in required and types == "object" and schema.get("nullable") is not True:
        return _Branch(member, chosen)
    identity = (id(schema), by.name, _texts(chosen))
    if identity not in by.narrowed:
        results = {key: item for key, item in schema.items() if key != "nullable"}
        results["type"] = "object"
        results["properties"] = (
            {**properties, by.name: value} if by.name in properties else {by.name: value, **properties}
        )
        results["required"] = required if by.name in required else [*required, by.name]
        by.narrowed[identity] = replace(target, schema=results)
    return _Branch({"$ref": by.narrowed[identity]}, chosen)


def _tagged(by: _Discriminator, declared: Any, where: Target, tags: Sequence[str]) -> tuple[Any, Sequence[Any]] | None:
    """Return the schema of the property and its values, given the names of the branch."""
    target, nullable = where.child(declared, f"properties/{by.name[:MAX_SHOWN]}"), False
    assertions: dict[str, Any] = {}
    for _ in range(MAX_HOPS):
        if not isinstance(target.schema, dict):
            return None
        assertions, nullable = _assertions(target.schema), nullable or target.schema.get("nullable") is True
        if set(assertions) != {"$ref"}:
            break
        target = by.follow(assertions["$ref"], target)
    simple = assertions.keys() <= {"type", "const", "enum"}
    constants = [assertions["const"]] if "const" in assertions else assertions.get("enum")
    types = assertions.get("type", "string")
    if isinstance(constants, list):
        chosen = [
            constant for constant in constants if constant is not None and _spelled(constant) in tags
        ] or constants
        if len(chosen) == len(constants) and not nullable:
            return declared, constants
        if not simple:
            return None if nullable else (declared, constants)
    elif simple and tags and "string" in (types if isinstance(types, list) else [types]):
        chosen, types = list(dict.fromkeys(tags)), "string"
    else:
        return None
    return {**({"type": types} if "type" in assertions else {}), "enum": chosen}, chosen


def _assertions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if restricts(key, schema)}


def _spelled(value: Any) -> str:
    """Write a constant the way the keys of a mapping are written."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(canonical(value) for value in values)


def _are_apart(branches: Sequence[_Branch]) -> bool:
    """Return True if no tag belongs to two branches."""
    earlier = set[str]()
    for branch in branches:
        texts = set(_texts(branch.tags))
        if earlier & texts:
            return False
        earlier |= texts
    return True
