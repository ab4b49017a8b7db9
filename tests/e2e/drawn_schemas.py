"""Schemas as applications send them, drawn: as many as wanted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]

NAMES = (
    "id name title email phone address city country zip_code price amount currency quantity status type kind tags "
    "items created_at updated_at due_date start end url website description summary notes score rating confidence "
    "language category priority is_active enabled owner author assignee parent children metadata options settings "
    "limit offset query filters sort_by sort_order latitude longitude width height color size version sku barcode "
    "firstName lastName dateOfBirth phoneNumber order_id customer-id user.name größe 住所 @type $amount"
).split()
ENUMS = (
    ["open", "in progress", "closed"],
    ["low", "medium", "high", "urgent"],
    ["EUR", "USD", "GBP", "JPY"],
    ["asc", "desc"],
    [1, 2, 3, 5, 8],
    ["positive", "neutral", "negative", None],
    [True],
    ["café", 'say "hi"', "a\\b", "C++", "日本語"],
    [0.5, 1.0, 2.5],
)
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
PATTERNS = (
    "^[A-Z]{2}-[0-9]{4}$",
    "^\\+?[0-9]{7,12}$",
    "^#[0-9a-f]{6}$",
    "^v\\d{1,2}\\.\\d{1,2}(\\.\\d{1,2})?$",
    "^(yes|no|maybe)$",
    "^[^@ ]{1,8}@[a-z]{2,8}\\.(com|org)$",
    "^[A-Za-zÀ-ÖØ-öø-ÿ' -]{1,12}$",
    "^\\S{3,8}$",
)


class Drawn:
    """One bounded schema, drawn with a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._definitions: Schema = {}

    def schema(self) -> Schema:
        """An object, now and then a list or a choice of objects at the top."""
        draw = self._random
        top = draw.choices([self._object, self._array, self._union], [8, 1, 1])[0](draw.randint(1, 3))
        if self._definitions:
            top = {"$defs": self._definitions, **top}
        if draw.random() < 0.3:
            top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer", **top}
        return top

    def _any(self, depth: int) -> Schema:
        draw = self._random
        if depth > 0 and draw.random() < 0.4:
            nested: list[Callable[[int], Schema]] = [self._object, self._array, self._union, self._reference]
            return draw.choice(nested)(depth - 1)
        found = draw.choice([self._text, self._number, self._choice, self._flag])()
        if draw.random() < 0.2:
            found["description"] = "What the model is told about this field."
        return found

    def _object(self, depth: int) -> Schema:
        draw = self._random
        names = draw.sample(NAMES, draw.randint(1, 5))
        found: Schema = {"type": "object", "properties": {name: self._any(depth) for name in names}}
        if draw.random() < 0.8:
            found["required"] = draw.sample(names, draw.randint(1, len(names)))
        if draw.random() < 0.6:
            found["additionalProperties"] = False
        return found

    def _array(self, depth: int) -> Schema:
        draw = self._random
        if draw.random() < 0.15:
            return {"type": "array", "prefixItems": [self._any(0), self._any(0)], "items": False, "minItems": 2}
        least = draw.randint(0, 2)
        return {"type": "array", "items": self._any(depth), "minItems": least, "maxItems": least + draw.randint(0, 2)}

    def _union(self, depth: int) -> Schema:
        draw = self._random
        if draw.random() < 0.3:  # told apart by a constant
            kinds = draw.sample(["card", "cash", "transfer", "voucher"], 2)
            return {"oneOf": [self._variant(kind, depth) for kind in kinds]}
        return {"anyOf": [self._any(depth), draw.choice([{"type": "null"}, self._any(0)])]}

    def _variant(self, kind: str, depth: int) -> Schema:
        properties = {"kind": {"const": kind}, self._random.choice(NAMES[:12]): self._any(depth)}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def _reference(self, depth: int) -> Schema:
        name = self._random.choice(["Address", "Money", "Person"])
        if name not in self._definitions:
            self._definitions[name] = {}
            self._definitions[name] = self._object(0)
        return {"$ref": f"#/$defs/{name}"}

    def _text(self) -> Schema:
        draw = self._random
        kind = draw.random()
        if kind < 0.4:
            return {"type": "string", "format": "uri" if kind < 0.03 else draw.choice(FORMATS)}
        if kind < 0.7:
            return {"type": "string", "pattern": draw.choice(PATTERNS)}
        least = draw.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 8)}

    def _number(self) -> Schema:
        draw = self._random
        if draw.random() < 0.5:
            low = draw.choice([0, 1, -50, 1000])
            return {"type": "integer", "minimum": low, "maximum": low + draw.choice([1, 9, 100, 4321])}
        bounds = draw.choice([(0, 1), (-90, 90), (0.5, 99.99)])
        keys = draw.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), ("minimum", "maximum")])
        return {"type": "number", **dict(zip(keys, bounds, strict=True))}

    def _choice(self) -> Schema:
        values = self._random.choice(ENUMS)
        return {"enum": values} if self._random.random() < 0.7 else {"const": values[0]}

    def _flag(self) -> Schema:
        return {"type": self._random.choice(["boolean", ["boolean", "null"], "null"])}


def drawn_schemas(count: int) -> Iterator[Schema]:
    """Bounded schemas: whatever is written comes to an end."""
    return (Drawn(seed).schema() for seed in range(count))
