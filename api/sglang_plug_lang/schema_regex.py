"""Regular expressions for the JSON texts that a JSON schema allows.

The schema is one of fixed shape, as classes of pydantic have it: objects with known properties in their order, lists,
enumerations and scalars. A schema that a regular expression cannot describe is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

WHITESPACE = "[ ]?"
CHARACTER = r'([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})'
INTEGER = r"(-)?(0|[1-9][0-9]*)"
NUMBER = INTEGER + r"(\.[0-9]+)?([eE][+-]?[0-9]+)?"
SCALARS: Mapping[str, str] = {"integer": INTEGER, "number": NUMBER, "boolean": "(true|false)", "null": "null"}
DATE, TIME = r"[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])", r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
ZONE = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS: Mapping[str, str] = {
    "date": DATE,
    "time": f"{TIME}{ZONE}?",
    "date-time": f"{DATE}T{TIME}{ZONE}?",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


SPECIAL = re.compile(r"[\\.^$*+?{}\[\]()|]")


def build_regex_from_object(object: Any, whitespace_pattern: str | None = None) -> str:
    """Return a regular expression for the JSON texts of a schema, for ``gen(regex=...)``.

    Args:
        object: a class of pydantic, a schema as a dictionary, or a schema as JSON text.
        whitespace_pattern: whitespace between the parts; by default at most one space.

    Raises ``ValueError`` for a schema that this cannot describe, for example a recursive one.
    """
    if isinstance(object, str):
        schema = json.loads(object)
    else:
        schema = object if isinstance(object, Mapping) else object.model_json_schema()
    return _Builder(schema, WHITESPACE if whitespace_pattern is None else whitespace_pattern).build(schema, ())


class _Builder:
    """Translates one schema.

    Args:
        root: the whole schema, which references point into.
    """

    def __init__(self, root: Mapping[str, Any], whitespace: str) -> None:
        self._root, self._ws = root, whitespace

    def build(self, schema: Any, references: tuple[str, ...]) -> str:
        """Return the pattern of a part; ``references`` are those that led to it."""
        if not isinstance(schema, Mapping):
            raise ValueError(f"no regular expression for the schema {schema!r}")
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in references:
                raise ValueError(f"the schema contains itself ({reference}), which no regular expression describes")
            return self.build(self._resolve(reference), (*references, reference))
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            return _any_of(_literal(value) for value in values)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return _any_of(self.build(part, references) for part in schema[keyword])
        if len(schema.get("allOf", ())) == 1:
            return self.build(schema["allOf"][0], references)
        kind = schema.get("type")
        if isinstance(kind, list):
            return _any_of(self.build({**schema, "type": item_kind}, references) for item_kind in kind)
        return self._typed(kind, schema, references)

    def _typed(self, kind: Any, schema: Mapping[str, Any], references: tuple[str, ...]) -> str:
        match kind:
            case "string":
                return _string(schema)
            case "object":
                return self._object(schema, references)
            case "array":
                return self._array(schema, references)
            case str() if kind in SCALARS:
                return SCALARS[kind]
        raise ValueError(f"no regular expression for a schema of the type {kind!r}: {json.dumps(dict(schema))}")

    def _object(self, schema: Mapping[str, Any], references: tuple[str, ...]) -> str:
        properties = schema.get("properties") or {}
        if not properties:
            pair = self._pair(_string({}), schema.get("additionalProperties"), references)
            return self._enclosed(r"\{", self._repeated(pair, 0, None), r"\}")
        required = set(schema.get("required", ()))
        items = [(self._pair(_literal(name), part, references), name in required) for name, part in properties.items()]
        return self._enclosed(r"\{", self._sequence(items), r"\}")

    def _pair(self, key: str, value: Any, references: tuple[str, ...]) -> str:
        return f"{key}{self._ws}:{self._ws}{self.build(value, references)}"

    def _sequence(self, items: Sequence[tuple[str, bool]]) -> str:
        """Return items in order, with commas between those that are present; each is required or not."""
        first_required = next((index for index, (_, required) in enumerate(items) if required), None)
        if first_required is not None:
            before = "".join(f"({item}{self._comma})?" for item, _ in items[:first_required])
            return before + items[first_required][0] + self._following(items[first_required + 1 :])
        starts = (item + self._following(items[index + 1 :]) for index, (item, _) in enumerate(items))
        return _any_of(starts) + "?"

    def _following(self, items: Sequence[tuple[str, bool]]) -> str:
        return "".join(f"({self._comma}{item})" + ("" if required else "?") for item, required in items)

    def _array(self, schema: Mapping[str, Any], references: tuple[str, ...]) -> str:
        if "prefixItems" in schema:
            items = [self.build(part, references) for part in schema["prefixItems"]]
            return self._enclosed(r"\[", self._comma.join(items), r"\]")
        item = self.build(schema.get("items"), references)
        body = self._repeated(item, schema.get("minItems", 0), schema.get("maxItems"))
        return self._enclosed(r"\[", body, r"\]")

    def _repeated(self, item: str, minimum: int, maximum: int | None) -> str:
        if maximum == 0:
            return ""
        more = f"({self._comma}{item}){{{max(minimum - 1, 0)},{'' if maximum is None else maximum - 1}}}"
        return f"({item}{more})" + ("?" if minimum == 0 else "")

    def _enclosed(self, begin: str, body: str, end: str) -> str:
        return f"{begin}{self._ws}{body}{self._ws}{end}"

    @property
    def _comma(self) -> str:
        return f"{self._ws},{self._ws}"

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise ValueError(f"the reference {reference!r} leads out of the schema")
        part: Any = self._root
        for name in filter(None, reference[1:].split("/")):
            part = part[name.replace("~1", "/").replace("~0", "~")]
        return part


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        pattern = str(schema["pattern"])
        begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
        inner = pattern[1 if begins else 0 : len(pattern) - 1 if ends else None]
        return '"' + ("" if begins else f"{CHARACTER}*") + f"({inner})" + ("" if ends else f"{CHARACTER}*") + '"'
    if schema.get("format") in FORMATS:
        return f'"{FORMATS[schema["format"]]}"'
    minimum, maximum = schema.get("minLength", 0), schema.get("maxLength", "")
    return f'"{CHARACTER}*"' if (minimum, maximum) == (0, "") else f'"{CHARACTER}{{{minimum},{maximum}}}"'


def _literal(value: Any) -> str:
    """Return a pattern for the JSON text of a value."""
    if isinstance(value, list | dict):
        raise ValueError(f"no regular expression for the constant {value!r}: only scalars are supported")
    return SPECIAL.sub(r"\\\g<0>", json.dumps(value, ensure_ascii=False))


def _any_of(patterns: Any) -> str:
    return "(" + "|".join(patterns) + ")"
