"""JSON-Schema-Test-Suite, run through token masks: every instance is decided correctly, or its schema is refused.

``json_schema_test_suite/`` holds the draft 2020-12 files of the keywords and formats that a backend claims, as
jsonschema 4.26 brings them. An instance is fed as JSON text, byte by byte, with ``", "`` and ``": "``. Backends fix the
order of properties, so every order of an object's keys is tried: a valid instance must be accepted in one of them, an
invalid one in none, nor with its characters escaped.

What a backend refuses, and the valid instances that it never writes, are listed in ``decided/``; a change of either is
a change of that list. ``SGLANG_PLUG_WRITE_DECIDED=1`` writes it anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_backends.grammars.json_schema.keywords import ANNOTATIONS, BY_TYPE, STANDALONE
from sglang_plug_backends.llguidance.schema import KEYWORDS

SUITE = Path(__file__).with_name("json_schema_test_suite")
DECIDED = Path(__file__).with_name("decided")
MAX_ORDERS = 400
KEYWORDS_BY_TYPES = {  # keywords -> types that a schema without "type" speaks of
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}


def groups() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(SUITE.rglob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(SUITE).with_suffix('')}: {group['description']}", group


def orders(value: Any) -> Iterator[Any]:
    """Yield ``value`` with the keys of its objects in every order."""
    if isinstance(value, list):
        yield from (list(items) for items in product(*map(lambda item: list(orders(item)), value)))
    elif isinstance(value, dict):
        for keys in permutations(value):
            for items in product(*(list(orders(value[key])) for key in keys)):
                yield dict(zip(keys, items, strict=True))
    else:
        yield value


def texts(value: Any) -> Iterator[str]:
    for order in islice(orders(value), MAX_ORDERS):
        yield json.dumps(order, ensure_ascii=False)
        yield json.dumps(order)


def inside(value: Any) -> Iterator[Any]:
    """Yield ``value`` and all values in it."""
    yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from inside(child)


def type_of(value: Any) -> str:
    types = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return types.get(type(value), "null")


def never_written(schema: Any, instance: Any) -> str | None:
    """Return the reason why a valid instance is never generated; ``None`` if it should be."""
    has_point = any(isinstance(value, float) and value.is_integer() for value in (*inside(instance), *inside(schema)))
    if has_point:
        return "a whole number with a point"
    spoken = {kind for kind, keys in KEYWORDS_BY_TYPES.items() if keys & schema.keys()}
    if "format" in schema and type_of(instance) == "string":
        return "a rare form of the format"
    if "type" not in schema and any(type_of(value) not in spoken for value in inside(instance)) and spoken:
        return "a type that the schema does not speak of"
    if isinstance(instance, list) and len(instance) > len(schema.get("prefixItems", instance)):
        return "items beyond those that are described"
    declared = {name for value in inside(schema) if isinstance(value, dict) for name in value.get("properties", ())}
    if isinstance(instance, dict) and ("anyOf" in schema or instance.keys() - declared):
        return "properties beyond those that are described"
    return None


@pytest.mark.parametrize("name", ["xgrammar", "llguidance", "outlines"])
def test_every_schema_is_decided_right_or_refused(grammar_backends: Callable[..., Any], name: str) -> None:
    backend = grammar_backends(name)
    refused, unwritten, wrong, decided = [], [], [], 0
    for title, group in groups():
        schema = group["schema"]
        if reason := backend.refusal("json_schema", schema):
            refused.append(f"refused | {title} | {reason}")
            continue
        compiled = backend("json_schema", schema)
        for test in group["tests"]:
            decided += 1
            accepted = any(map(compiled.accepts, texts(test["data"])))
            if accepted and not test["valid"]:
                wrong.append(f"{title} | {test['description']}: accepted")
            if test["valid"] and not accepted:
                why = never_written(schema, test["data"])
                unwritten.append(f"never written | {title} | {test['description']} | {why}")
                wrong += [unwritten[-1]] if why is None else []
    assert wrong == []
    assert decided > 500
    check_decided(DECIDED / f"{name}.txt", [*refused, *unwritten])


def check_decided(path: Path, lines: list[str]) -> None:
    result = "".join(f"{line}\n" for line in lines)
    if os.environ.get("SGLANG_PLUG_WRITE_DECIDED"):
        path.write_text(result, encoding="utf-8")
    assert path.read_text(encoding="utf-8").splitlines() == lines


def test_every_keyword_that_is_claimed_is_in_the_suite() -> None:
    claimed = {*STANDALONE, *KEYWORDS, *(key for keys in BY_TYPE.values() for key in keys)} - {"format", "$ref"}
    files = {path.stem for path in SUITE.glob("*.json")}
    assert claimed <= files and "ref" in files
    formats = {group["schema"]["format"] for title, group in groups() if title.startswith("format/")}
    assert formats == {path.stem for path in (SUITE / "format").glob("*.json")}
    assert claimed.isdisjoint(ANNOTATIONS)
