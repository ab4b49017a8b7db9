"""Hand-written schemas like those that applications send."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT, COUNT = {"type": "string", "maxLength": 10}, {"type": "integer", "minimum": 0, "maximum": 999}


def fields(properties: Schema, *optional: str, **more: Any) -> Schema:
    """Return a schema of an object with these properties, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        **more,
    }


BOUNDED: list[Schema] = [
    fields(
        {
            "sentiment": {"enum": ["positive", "negative", "neutral"]},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        }
    ),
    fields({"answer": {"type": "boolean"}, "reason": {"type": "string", "maxLength": 30}}),
    fields({"city": TEXT, "unit": {"enum": ["celsius", "fahrenheit"], "description": "degrees"}}, "unit"),
    fields(
        {
            "people": {
                "type": "array",
                "maxItems": 3,
                "items": fields({"name": TEXT, "age": COUNT, "email": {"type": "string", "format": "email"}}),
            }
        }
    ),
    fields(
        {
            "invoice": fields(
                {
                    "number": {"type": "string", "pattern": "^INV-\\d{4}$"},
                    "date": {"type": "string", "format": "date"},
                    "lines": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": 2,
                        "items": fields(
                            {
                                "sku": TEXT,
                                "quantity": COUNT,
                                "price": {"type": "number", "minimum": 0, "maximum": 99.99},
                            }
                        ),
                    },
                }
            )
        }
    ),
    fields(
        {
            "steps": {"type": "array", "maxItems": 3, "items": fields({"explanation": TEXT, "output": TEXT})},
            "final_answer": TEXT,
        }
    ),
    {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 4},
    {
        "type": "array",
        "prefixItems": [
            {"type": "number", "minimum": -180, "maximum": 180},
            {"type": "number", "minimum": -90, "maximum": 90},
        ],
        "items": False,
        "minItems": 2,
    },
    {"enum": ["yes", "no", "unknown"]},
    {"type": "integer", "minimum": 1, "maximum": 5},
    {"anyOf": [fields({"result": TEXT}), fields({"error": fields({"code": COUNT, "message": TEXT})})]},
    {
        "oneOf": [
            fields({"kind": {"const": "dog"}, "barks": {"type": "boolean"}}),
            fields({"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}),
        ]
    },
    {
        "$defs": {"address": fields({"street": TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}})},
        **fields(
            {
                "billing": {"$ref": "#/$defs/address"},
                "shipping": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
            }
        ),
    },
    {
        "definitions": {
            "point": {
                "type": "array",
                "items": {"type": "integer", "minimum": -9, "maximum": 9},
                "minItems": 2,
                "maxItems": 2,
            }
        },
        **fields(
            {"polygon": {"type": "array", "items": {"$ref": "#/definitions/point"}, "minItems": 3, "maxItems": 4}}
        ),
    },
    fields(
        {
            "method": {"enum": ["GET", "POST"]},
            "path": {"type": "string", "pattern": "^(/[a-z]{1,6}){1,3}$"},
            "headers": fields({"Content-Type": {"const": "application/json"}}, "Content-Type"),
            "body": {"type": ["null", "boolean"]},
        }
    ),
    fields(
        {
            "event": TEXT,
            "when": {"type": "string", "format": "date-time"},
            "duration": {"type": "string", "format": "duration"},
            "attendees": {"type": "array", "items": {"type": "string", "format": "email"}, "maxItems": 2},
        },
        "duration",
    ),
    fields(
        {
            "ip": {"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]},
            "host": {"type": "string", "format": "hostname"},
            "port": {"type": "integer", "exclusiveMinimum": 0, "maximum": 65535},
        }
    ),
    fields(
        {
            "matrix": {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": {"type": "integer", "minimum": 0, "maximum": 1},
                },
            }
        }
    ),
    fields({"a": fields({"b": fields({"c": fields({"d": fields({"e": {"type": "null"}})})})})}),
    fields({"wörter": {"enum": ["größer", "日本", "🙂"]}, 'quoted "name"': TEXT, "back\\slash": {"type": "boolean"}}),
]
"""Schemas whose matching documents are finite."""

UNBOUNDED: list[Schema] = [
    {"type": "object"},
    {"type": "string"},
    {"type": "number"},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "number"}},
    {"type": "object", "properties": {"name": {"type": "string"}, "extra": True}},
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"value": COUNT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["value", "next"],
            }
        },
        "$ref": "#/$defs/node",
    },
    {
        "type": "object",
        "properties": {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["name", "children"],
    },
    fields({"comment": {"type": "string", "minLength": 1}, "score": {"type": "integer"}}),
]
"""Schemas with documents of any length, which a model may never end."""
