"""Annotations inserted into random parts of JSON schemas; these keywords must not change any schema."""

from __future__ import annotations

import random
from typing import Any

ANNOTATIONS: dict[str, Any] = {
    "strict": True,
    "nullable": False,
    "example": {"type": "string", "not": {}},
    "examples": [{"if": {}, "then": False}],
    "x-order": ["b", "a"],
    "x-guidance": {"lenient": True, "whitespace_flexible": True},
    "optional": True,
    "discriminator": {"propertyName": "kind", "mapping": {"a": "#/$defs/nowhere"}},
    "markdownDescription": "**bold**",
    "enumNames": ["one", "two"],
    "enumDescriptions": {"uniqueItems": True},
    "propertyOrdering": ["z", "a"],
    "errorMessage": {"required": "missing", "properties": {"a": "wrong"}},
    "ui:widget": {"type": "null", "contains": {"const": 1}},
    "contentMediaType": "application/json",
    "contentEncoding": "base64",
    "contentSchema": {"type": "array", "uniqueItems": True},
    "id": "http://example.org/an-id",
    "$comment": "Nothing to see",
    "$anchor": "here",
    "minlength": 3,
    "Required": ["a"],
    "default": {"$ref": "#/nowhere"},
    "deprecated": True,
    "xml": {"name": "a", "wrapped": True},
    "externalDocs": {"url": "http://example.org"},
    "": {"$ref": 5},
    "é": None,
}
SINGLE = ("items", "additionalProperties")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "$defs", "definitions")


def annotated(schema: Any, generator: random.Random, rate: float = 0.6) -> Any:
    """Return ``schema`` with annotations at any level and between other keywords."""
    if not isinstance(schema, dict):
        return schema
    inner = {key: _inside(key, value, generator, rate) for key, value in schema.items()}
    free = [key for key in ANNOTATIONS if key not in inner]
    if {"oneOf", "anyOf"} & inner.keys():  # there it selects a branch
        free.remove("discriminator")
    pairs = list(inner.items())
    for key in generator.sample(free, generator.randint(1, 3)) if generator.random() < rate else []:
        pairs.insert(generator.randint(0, len(pairs)), (key, ANNOTATIONS[key]))
    return dict(pairs)


def _inside(key: str, value: Any, generator: random.Random, rate: float) -> Any:
    if key in SINGLE:
        return annotated(value, generator, rate)
    if key in LISTS:
        return [annotated(item, generator, rate) for item in value]
    if key in NAMED:
        return {name: annotated(item, generator, rate) for name, item in value.items()}
    return value
