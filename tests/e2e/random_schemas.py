"""Random schemas like those that applications send."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.annotated_schemas import annotated

Schema = dict[str, Any]
LONG_TEXTS = 0.15
"""Fraction of the objects that have a text of up to some hundred characters."""

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
LONG_PATTERNS = (
    '^[^"]{20,180}$',
    "^[A-Za-zÀ-ÖØ-öø-ÿ' -]{129,200}$",
    "^.{1,200}$",
    "^(\\w{1,20}[ .]){3,12}$",
    "^((é|[a-c]){1,30}){1,4}$",
    "^((\\d)*)*(x{1,3}-?){1,40}$",
    "^[ぁ-ん漢字。]{30,150}$",
)


class RandomSchema:
    """Generator of one bounded schema from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.definitions: Schema = {}

    def schema(self) -> Schema:
        """Return the schema of an object, sometimes of a list or a union of objects."""
        draw = self._random
        top = draw.choices([self._object, self._array, self._union], [8, 1, 1])[0](draw.randint(1, 3))
        if "properties" in top and draw.random() < LONG_TEXTS:  # once, or an output might not end in time
            top["properties"]["biography"] = self.long_text()
        if self.definitions:
            top = {"$defs": self.definitions, **top}
        if draw.random() < 0.3:
            top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer", **top}
        return top

    def part(self, depth: int) -> Schema:
        """Return a schema of a few levels, which may refer to ``definitions``."""
        draw = self._random
        if depth > 0 and draw.random() < 0.4:
            nested: list[Callable[[int], Schema]] = [self._object, self._array, self._union, self._reference]
            return draw.choice(nested)(depth - 1)
        schema = draw.choice([self._text, self.number, self._choice, self._flag])()
        if draw.random() < 0.2:
            schema["description"] = "What the model is told about this field."
        return schema

    def _object(self, depth: int) -> Schema:
        draw = self._random
        names = draw.sample(NAMES, draw.randint(1, 5))
        schema: Schema = {"type": "object", "properties": {name: self.part(depth) for name in names}}
        if draw.random() < 0.8:
            schema["required"] = draw.sample(names, draw.randint(1, len(names)))
        if draw.random() < 0.6:
            schema["additionalProperties"] = False
        return schema

    def _array(self, depth: int) -> Schema:
        draw = self._random
        if draw.random() < 0.15:
            return {"type": "array", "prefixItems": [self.part(0), self.part(0)], "items": False, "minItems": 2}
        minimum = draw.randint(0, 2)
        return {
            "type": "array",
            "items": self.part(depth),
            "minItems": minimum,
            "maxItems": minimum + draw.randint(0, 2),
        }

    def _union(self, depth: int) -> Schema:
        draw = self._random
        if draw.random() < 0.3:  # distinguished by a constant
            kinds = draw.sample(["card", "cash", "transfer", "voucher"], 2)
            return {"oneOf": [self._variant(kind, depth) for kind in kinds]}
        return {"anyOf": [self.part(depth), draw.choice([{"type": "null"}, self.part(0)])]}

    def _variant(self, kind: str, depth: int) -> Schema:
        properties = {"kind": {"const": kind}, self._random.choice(NAMES[:12]): self.part(depth)}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def _reference(self, depth: int) -> Schema:
        name = self._random.choice(["Address", "Money", "Person"])
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self._object(0)
        return {"$ref": f"#/$defs/{name}"}

    def _text(self) -> Schema:
        draw = self._random
        kind = draw.random()
        if kind < 0.4:
            return {"type": "string", "format": "uri" if kind < 0.03 else draw.choice(FORMATS)}
        if kind < 0.7:
            return {"type": "string", "pattern": draw.choice(PATTERNS)}
        minimum = draw.randint(0, 3)
        return {"type": "string", "minLength": minimum, "maxLength": minimum + draw.randint(0, 8)}

    def long_text(self) -> Schema:
        """A text of up to some hundred characters."""
        draw = self._random
        if draw.random() < 0.4:
            return {"type": "string", "pattern": draw.choice(LONG_PATTERNS)}
        minimum = draw.choice([0, 1, 20, 128, 150])
        return {"type": "string", "minLength": minimum, "maxLength": minimum + draw.choice([1, 30, 129, 150])}

    def number(self) -> Schema:
        """A bounded number."""
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


def random_schemas(count: int) -> Iterator[Schema]:
    """Yield bounded schemas: every document that matches is finite."""
    return (RandomSchema(seed).schema() for seed in range(count))


def annotated_schemas(count: int) -> Iterator[tuple[Schema, Schema]]:
    """Yield bounded schemas, each with annotations and without."""
    for seed in range(count):
        schema = RandomSchema(seed).schema()
        yield annotated(schema, random.Random(seed)), schema


def openapi_schemas(count: int) -> Iterator[tuple[Schema, Schema]]:
    """Yield bounded schemas with ``nullable`` and ``discriminator``, each with its equivalent in JSON Schema."""
    for seed in range(count):
        generator, draw = RandomSchema(seed), random.Random(seed)
        names = draw.sample(NAMES, draw.randint(1, 4))
        plain = {name: generator.part(1) for name in names}
        chosen = {name for name in names if draw.random() < 0.5}
        written = {name: {**plain[name], "nullable": True} if name in chosen else plain[name] for name in names}
        read = {name: {"anyOf": [plain[name], {"type": "null"}]} if name in chosen else plain[name] for name in names}
        tags = draw.sample(["card", "cash", "transfer", "voucher"], draw.randint(2, 3))
        variants = {tag: {**_object({"amount": generator.number()}), "title": tag} for tag in tags}
        tagged, other = _tagged_union(variants, draw)
        definitions = {"$defs": {**generator.definitions, **tagged.pop("$defs")}}
        yield (
            {**_object({**written, "payment": tagged}), **definitions},
            {**_object({**read, "payment": other}), **definitions},
        )


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _tagged_union(variants: dict[str, Schema], draw: random.Random) -> tuple[Schema, Schema]:
    """Return a union with a discriminator, whose branches may omit or not restrict the tag, and a strict union."""
    definitions, strict = {}, []
    for tag, variant in variants.items():
        value = draw.choice([{"const": tag}, {"enum": [tag], "type": "string"}, {"type": "string"}])
        definitions[tag] = {**variant, "properties": {**variant["properties"], "type": value}}
        properties = {**variant["properties"], "type": {"const": tag}}
        strict.append({**variant, "properties": properties, "required": list(properties)})
    mapping = {tag: f"#/$defs/{tag}" for tag in variants}
    discriminator = {"propertyName": "type", **({"mapping": mapping} if draw.random() < 0.7 else {})}
    references = [{"$ref": target} for target in mapping.values()]
    union = {draw.choice(["oneOf", "anyOf"]): references, "discriminator": discriminator, "$defs": definitions}
    return union, {"oneOf": strict}


def long_texts(count: int) -> Iterator[Schema]:
    """Yield objects with a text of up to some hundred characters, half of them a level deeper."""
    for seed in range(count):
        text = RandomSchema(seed).long_text()
        schema: Schema = {"type": "object", "properties": {"biography": text}, "additionalProperties": False}
        schema["required"] = ["biography"]
        yield {"type": "array", "items": schema, "minItems": 1, "maxItems": 2} if seed % 2 else schema
