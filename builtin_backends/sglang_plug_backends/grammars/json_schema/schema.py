"""Conversion of JSON schemas to EBNF grammars.

Every text of the grammar is a value that the schema allows, but not every allowed value is a text of it (properties
keep their order, for one). Schemas that cannot be enforced are refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

from sglang_plug_backends.grammars.ebnf.characters import JSON_PLAIN, WORD, Characters, literal
from sglang_plug_backends.grammars.ebnf.regex import MAX_REPEATS
from sglang_plug_backends.grammars.refusal import Refusal

from .exclusive import exclusive
from .keywords import BY_TYPE, KNOWN, STANDALONE
from .notation import JSON, PARAMETER, Keys, Notation
from .plain_schema import MAX_DEPTH, MAX_NODES, plain_schema
from .references import resolve, unending
from .scalars import count, number, text
from .whitespace import Whitespace

MAX_NAME = 256
"""Maximum characters of a property's name where other properties are allowed."""
END = "\0"
EMPTY = '""'
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def schema_to_ebnf(source: str, whitespace: Whitespace) -> str:
    """Convert the schema in ``source`` to the grammar of its values. Raises ``Refusal``."""
    return Converter(parse(source), whitespace).grammar()


def parse(source: str) -> Any:
    """Parse ``source`` as JSON with exact decimals. Raises ``Refusal``."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(source, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the schema is not valid JSON: {error or 'it is nested too deeply'}") from None


class Converter:
    """Converter of one schema to rules, used once."""

    def __init__(self, root: Any, whitespace: Whitespace, notation: Notation = JSON) -> None:
        self._plain, self._notation = plain_schema(root), notation
        self._root = self._plain.schema
        space = f" [ \\n\\r\\t]{{0,{whitespace.max_length}}} " if whitespace.free else " "
        self._comma = f'{space}","{space}' if whitespace.free else ' ", " '
        self._colon = f'{space}":"{space}' if whitespace.free else ' ": " '
        self._space = space
        self._rules = dict(notation.rules)
        self._references: dict[str, str] = {}
        self._unguarded: list[str] = []
        self._nodes = 0

    def grammar(self) -> str:
        """Return all rules."""
        return self._written(self._value(self._root, "#", 0))

    def arguments(self) -> str:
        """Return all rules for an object written as the named arguments of a call: ``name=value, name=value``."""
        path = "#"
        keys = _keywords(self._root, path)
        if alone := [key for key in keys if key in STANDALONE]:
            raise Refusal(f"the keyword {alone[0]!r} at {path} cannot be enforced in the arguments of a call")
        if self._root.get("type", "object") != "object":
            raise Refusal(f"type at {path} must be 'object', as arguments of a call are")
        inside = self._inside(self._root, path, 0, Keys(WORD, '"="', quoted=False))
        for name in self._root.get("properties", ()):
            if not PARAMETER.fullmatch(name):
                raise Refusal(f"{path}/properties/{name[:80]} cannot be the name of an argument")
        for name in self._root.get("required", ()):
            if not PARAMETER.fullmatch(name):
                raise Refusal(f"{str(name)[:80]!r} at {path}/required cannot be the name of an argument")
        return self._written(inside or EMPTY)

    def _written(self, body: str) -> str:
        if endless := unending(self._root, set(self._references)):
            origin = self._plain.origin(min(endless))
            raise Refusal(f"$ref to {origin[:80]}: infinitely recursive")
        self._rules["root"] = body
        return "\n".join(f"{name} ::= {body}" for name, body in self._rules.items()) + "\n"

    def _value(self, schema: Any, path: str, depth: int) -> str:
        """Return an expression for the values of ``schema``: one name or one pair of parentheses."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise Refusal(f"the schema is too large at {path[:80]}: at most {MAX_DEPTH} levels, {MAX_NODES} parts")
        if schema is True:
            return self._any()
        keys = _keywords(schema, path)
        for key in keys:
            if key in STANDALONE:
                return self._alone(key, schema, set(keys) - {key}, f"{path}/{key}", depth)
        return self._typed(schema, keys, path, depth)

    # -- keywords that stand alone --------------------------------------------------------------------------------

    def _alone(self, key: str, schema: dict[str, Any], others: set[str], path: str, depth: int) -> str:
        allowed = {"type"} if key in ("enum", "const") else set[str]()
        if others - allowed:
            raise Refusal(f"{min(others - allowed)!r} next to {path} cannot be enforced")
        value = schema[key]
        if key == "$ref":
            return self._reference(value, path, depth)
        if key == "const":
            return self._constants([value], schema, path)
        if not isinstance(value, list) or not value:
            raise Refusal(f"{path} must be a list with members")
        if key == "enum":
            return self._constants(value, schema, path)
        members = [(at, item) for at, item in enumerate(value) if item is not False or key == "allOf"]
        if not members:
            raise Refusal(f"{path} allows nothing")
        value = [member for _, member in members]
        if key == "allOf" and len(value) > 1:
            raise Refusal(f"{path} with more than one member cannot be enforced")
        if key == "oneOf" and not exclusive(value, lambda pointer: resolve(self._root, pointer, path)):
            raise Refusal(f"{path} cannot be enforced: more than one member might allow the same value; use anyOf")
        return _either([self._value(member, f"{path}/{at}", depth + 1) for at, member in members])

    def _constants(self, values: Sequence[Any], schema: dict[str, Any], path: str) -> str:
        types = _types(schema, path) if "type" in schema else None
        fitting = [value for value in values if types is None or any(is_of_type(value, kind) for kind in types)]
        if not fitting:
            raise Refusal(f"{path} has no value of the type {schema['type']}")
        texts = [self._constant(item, path) for item in fitting]
        return _either(texts)

    def _constant(self, value: Any, path: str) -> str:
        if isinstance(value, dict):
            members = [
                f"{self._string(key, path)}{self._colon}{self._constant(item, path)}" for key, item in value.items()
            ]
            return self._enclosed('"{"', self._comma.join(members), '"}"')
        if isinstance(value, list):
            return self._enclosed('"["', self._comma.join(self._constant(item, path) for item in value), '"]"')
        if isinstance(value, str):
            return self._string(value, path)
        return literal(str(value) if isinstance(value, Decimal) else self._notation.constant(value))

    def _string(self, text: str, path: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refusal(f"{path} holds half a surrogate pair") from None
        return literal(json.dumps(text, ensure_ascii=False))

    def _reference(self, pointer: Any, path: str, depth: int) -> str:
        target = resolve(self._root, pointer, path)
        if pointer in self._unguarded:
            raise Refusal(f"{path} refers to itself")
        if pointer not in self._references:
            name = self._references[pointer] = f"ref{len(self._references)}"
            self._unguarded.append(pointer)
            self._rules[name] = self._value(target, self._plain.origin(pointer), depth + 1)
            self._unguarded.pop()
        return self._references[pointer]

    # -- types ----------------------------------------------------------------------------------------------------

    def _typed(self, schema: dict[str, Any], keys: list[str], path: str, depth: int) -> str:
        if "type" in schema:
            types = _types(schema, path)
        else:  # read as the types that its keywords are about
            types = [kind for kind in TYPES if kind != "integer" and any(key in BY_TYPE[kind] for key in keys)]
        if not types:
            return self._any()
        return _either([self._of_type(kind, schema, path, depth) for kind in types])

    def _of_type(self, kind: str, schema: dict[str, Any], path: str, depth: int) -> str:
        match kind:
            case "object":
                return self._guarded(self._object, schema, path, depth)
            case "array":
                return self._guarded(self._array, schema, path, depth)
            case "string":
                return text(schema, path)
            case "number" | "integer":
                return number(kind, schema, path)
            case "boolean":
                return f'("{self._notation.true}" | "{self._notation.false}")'
        return f'"{self._notation.null}"'

    def _guarded(self, convert: Any, schema: dict[str, Any], path: str, depth: int) -> str:
        """Convert the inside of a bracket, in which references to outer schemas are no endless loops."""
        outside, self._unguarded = self._unguarded, []
        result: str = convert(schema, path, depth)
        self._unguarded = outside
        return result

    def _array(self, schema: dict[str, Any], path: str, depth: int) -> str:
        minimum, maximum = count(schema, "minItems", path) or 0, count(schema, "maxItems", path)
        if schema.get("uniqueItems", False) is not False:
            raise Refusal(f"uniqueItems at {path} cannot be enforced")
        first = schema.get("prefixItems", [])
        if not isinstance(first, list):
            raise Refusal(f"prefixItems at {path} must be a list")
        items = schema.get("items", not first or minimum > len(first))
        if never := [at for at, item in enumerate(first) if item is False]:  # no item is possible there or after it
            first, items = first[: never[0]], False
        if maximum is not None:
            first = first[:maximum]
        if (
            minimum > MAX_REPEATS
            or (maximum is not None and maximum < minimum)
            or (items is False and minimum > len(first))
        ):
            raise Refusal(f"minItems at {path} is above what is allowed")
        item_rule = None
        if items is not False and (maximum is None or maximum > len(first)):
            item_rule = self._new(self._value(items, f"{path}/items", depth + 1))
        results = [self._value(item, f"{path}/prefixItems/{at}", depth + 1) for at, item in enumerate(first)]
        return self._enclosed('"["', self._items(results, item_rule, minimum, maximum), '"]"')

    def _items(self, first: list[str], item_rule: str | None, minimum: int, maximum: int | None) -> str:
        """Write the inside of an array, from its end: the possible continuations of the items before."""
        text = ""
        if item_rule is not None:
            after, before = (
                max(minimum - len(first), 0),
                "" if maximum is None else min(maximum, MAX_REPEATS) - len(first),
            )
            if first:
                text = f"({self._comma}{item_rule}){{{after},{before}}}"
            else:
                before = "" if before == "" else int(before) - 1
                text = f"{item_rule} ({self._comma}{item_rule}){{{max(after - 1, 0)},{before}}}"
                text = text if minimum else f"({text})?"
        for index in reversed(range(len(first))):
            text = f"{self._comma if index else ''}{first[index]} {text}"
            text = text if index < minimum else self._new(f"{text} | {EMPTY}")
        return text

    # -- objects --------------------------------------------------------------------------------------------------

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> str:
        keys = Keys(JSON_PLAIN, self._colon)
        return self._enclosed('"{"', self._inside(schema, path, depth, keys), '"}"')

    def _inside(self, schema: dict[str, Any], path: str, depth: int, keys: Keys) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise Refusal(f"properties at {path} must be an object, required a list")
        if not all(isinstance(name, str) for name in required):
            raise Refusal(f"required at {path} must hold names")
        more = schema.get("additionalProperties", not properties and not required)
        undeclared = {name: schema.get("additionalProperties", True) for name in required if name not in properties}
        properties = {**properties, **undeclared}
        minimum, maximum = count(schema, "minProperties", path) or 0, count(schema, "maxProperties", path)
        if minimum > len(set(required)) or (maximum is not None and (more is not False or maximum < len(properties))):
            raise Refusal(f"minProperties or maxProperties at {path} cannot be enforced beyond required and properties")
        pairs = []
        for name, item in properties.items():
            if item is False and name not in required:
                continue
            value = self._value(item, f"{path}/properties/{name}", depth + 1)
            key = self._string(name, path) if keys.quoted else literal(name)
            pairs.append((self._new(f"{key}{keys.colon}{value}"), name in required))
        other = None
        if more is not False:
            if any(len(name) > MAX_NAME for name in properties):
                raise Refusal(f"additionalProperties at {path} next to a name of over {MAX_NAME} characters")
            names = properties if keys.quoted else (*properties, "")
            key = self._other_key([name + END for name in names], keys)
            value = self._value(more, f"{path}/additionalProperties", depth + 1)
            other = self._new(f"{keys.opening} {key} {value}")
        return self._members(pairs, other)

    def _members(self, pairs: list[tuple[str, bool]], other: str | None) -> str:
        """Write the inside of an object, from its end. ``later``: the continuation once a member precedes."""
        later = self._new(f"({self._comma}{other})*") if other else EMPTY
        opening = f"({other} {later})?" if other else ""
        for pair, needed in reversed(pairs):
            alone = f"{pair} {later}"
            opening = alone if needed else self._new(f"{alone} | {opening or EMPTY}")
            later = self._new(f"{self._comma}{pair} {later}" + ("" if needed else f" | {later}"))
        return opening

    def _other_key(self, remainders: Sequence[str], keys: Keys) -> str:
        """Write keys other than the given names, without escapes, so that each has one form, and their continuation.

        ``remainders``: the texts that would complete a name, and NUL for its end.
        """
        plain = keys.characters.ebnf()
        if not remainders:
            return self._new(f"{plain}* {keys.closing}")
        branches = [] if END in remainders else [keys.closing]
        heads = dict.fromkeys(remainder[0] for remainder in remainders if remainder != END)
        branches.append(f"{(keys.characters - Characters.of(''.join(heads))).ebnf()} {plain}* {keys.closing}")
        for head in heads:
            if head in keys.characters:
                later = self._other_key([remainder[1:] for remainder in remainders if remainder[0] == head], keys)
                branches.append(f"{literal(head)} {later}")
        return self._new(" | ".join(branches))

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _enclosed(self, opening: str, inside: str, closing: str) -> str:
        if not inside.strip():
            return f"({opening}{self._space}{closing})"
        return f"({opening}{self._space}({inside}){self._space}{closing})"

    def _new(self, body: str) -> str:
        """Create a rule for an expression that is used more than once."""
        name = f"part{len(self._rules)}"
        self._rules[name] = body
        return name

    def _any(self) -> str:
        """Return the rule for any JSON value."""
        if "any" not in self._rules:
            self._rules["any"] = ""  # reserve the name while its parts are built
            kinds = [self._of_type(kind, {}, "#", 0) for kind in TYPES if kind != "integer"]
            self._rules["any"] = _either(kinds)
        return "any"


def _keywords(schema: Any, path: str) -> list[str]:
    """Return the keywords of a plain schema. Raises ``Refusal`` for one that cannot be enforced."""
    if not isinstance(schema, dict):
        raise Refusal(f"{path} must be a schema that allows something, got {str(schema)[:40]}")
    keywords = [key for key in schema if key != "$defs"]
    for key in keywords:
        if key not in KNOWN:
            raise Refusal(f"the keyword {key[:80]!r} at {path} cannot be enforced")
    return keywords


def _either(branches: Sequence[str]) -> str:
    return branches[0] if len(branches) == 1 else f"({' | '.join(branches)})"


def _types(schema: dict[str, Any], path: str) -> list[str]:
    declared = schema["type"]
    types: list[Any] = declared if isinstance(declared, list) else [declared]
    for item in types:
        if item not in TYPES:
            raise Refusal(f"the type {str(item)[:40]!r} at {path} is unknown; known: {', '.join(TYPES)}")
    if not types:
        raise Refusal(f"type at {path} names no type")
    return list(dict.fromkeys(types))


def is_of_type(value: Any, kind: str) -> bool:
    """Return whether a constant has a type of JSON Schema."""
    match value:
        case None:
            return kind == "null"
        case bool():
            return kind == "boolean"
        case str():
            return kind == "string"
        case dict():
            return kind == "object"
        case list():
            return kind == "array"
        case int():
            return kind in ("integer", "number")
    return kind == "number"
