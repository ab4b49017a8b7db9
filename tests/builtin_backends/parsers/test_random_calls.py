"""Enforced calls are valid and readable by their own parser, for random schemas and tool choices."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sglang_plug import OutputParser, Plugins

from .conftest import RANDOMLY_TESTED, VALUE_ENDS

MODES = {
    "auto": {"required": False, "parallel": True},
    "auto, one": {"required": False, "parallel": False},
    "required": {"required": True, "parallel": True},
    "named": {"required": True, "parallel": False},
}
SCHEMAS, WALKS = 3, 2
"""Number of schemas, and of random walks per schema, for each parser in each mode."""
SCALARS: tuple[Any, ...] = (
    {"type": "string", "maxLength": 3},
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": -20, "maximum": 300},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 9.5},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[a-c(\\])]+$"},
    {"enum": ['a"]})', "</tool_call>", 1.5, None, [True, "é"], {"<|end|>": "; {"}]},
    {"const": ")]\n[TOOL_CALLS]"},
)


def random_schema(source: random.Random, depth: int = 2) -> Any:
    """Generate a schema that all backends enforce."""
    kind = source.choice(("object", "array", "anyOf", "scalar", "scalar")) if depth else "scalar"
    if kind == "object":
        return random_object(source, depth - 1, ("x", "y z", "Ä"))
    if kind == "array":
        return {"type": "array", "items": random_schema(source, depth - 1), "maxItems": 2}
    if kind == "anyOf":
        return {"anyOf": [{"type": "null"}, random_schema(source, depth - 1)]}
    return source.choice(SCALARS)


def random_object(source: random.Random, depth: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Generate an object schema with properties among ``names``."""
    chosen = [name for name in names if source.random() < 0.6]
    return {
        "type": "object",
        "properties": {name: random_schema(source, depth) for name in chosen},
        "required": [name for name in chosen if source.random() < 0.5],
        "additionalProperties": False,
    }


@functools.cache
def random_outputs(backend: Any, kind: str, source: str, ends: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return some outputs of a structure, of which all backends read variations."""
    return tuple(backend(kind, source).random_outputs(WALKS, ends, 700))


@pytest.fixture(scope="module")
def parsers() -> dict[str, type[OutputParser]]:
    plugins = Plugins.discover()
    return {name: plugins.get("tool-parser", name).load(OutputParser) for name in RANDOMLY_TESTED}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RANDOMLY_TESTED)
@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_generated_calls_are_read_and_valid(
    parsers: Any, read: Any, grammar_backends: Callable[..., Any], backend: str, name: str, mode: str
) -> None:
    result = 0
    for seed in range(SCHEMAS):
        source = random.Random(f"{seed}{name}{mode}")
        schema = random_object(source, 2, ("a", "from", "b-c"))
        functions = {"f": schema, **({} if mode == "named" else {"f.g-1": {"type": "object"}})}
        required = parsers[name].structure(functions, required=True, parallel=MODES[mode]["parallel"])
        ends = VALUE_ENDS if "any_text" in required.source else []
        wishes = [*random_outputs(grammar_backends("xgrammar"), required.kind, required.source, tuple(ends))]
        wishes += [*(wish[:-3] for wish in wishes), b"So. ", b"\n", *ends] if wishes else [b" "]
        constraint = parsers[name].structure(functions, **MODES[mode])
        output = grammar_backends(backend)(constraint.kind, constraint.source)
        for walk in range(WALKS):
            text = output.steer(WALKS * seed + walk, wishes)
            if text is None:
                continue
            events = read(parsers[name], text.decode(), functions=functions)
            calls = [event for event in events if isinstance(event, tuple) and event[0] != "thought"]
            assert calls == events or not MODES[mode]["required"], text
            for _, called, arguments in calls:
                assert Draft202012Validator(functions[called]).is_valid(json.loads(arguments)), (text, schema)
            assert len(calls) <= 1 or MODES[mode]["parallel"], text
            result += bool(calls)
    assert result
