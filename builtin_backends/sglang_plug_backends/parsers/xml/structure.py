"""Structural tags for calls whose arguments are written one by one between tags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from sglang_plug import SCHEMA_FIELD, Constraint, ConstraintError
from sglang_plug_backends.grammars.json_schema.plain_schema import plain_schema
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.parsers.call_structures import (
    Form,
    Schemas,
    arguments,
    constraint,
    either,
    literal,
    one_or_more,
    optional,
    sequence,
    star,
    text,
    text_with_calls,
    token,
    unsuitable_name,
)

from .form import XmlForm
from .value_types import ValueType, argument_type

NAME = re.compile(r'[^<>"\s]+')
KEY = re.compile(r'(?!\s)[^<>"\n]+(?<!\s)')
NOT_IN_KEYS = ("<", ">", '"', "\n")
UNDERSTOOD = frozenset({"type", "properties", "required", "additionalProperties", "$defs"})
ROOT = "arguments"
"""Name of the definition that stands for the whole schema."""


def structure(
    form: XmlForm, starts: Sequence[str], functions: Schemas, *, required: bool, parallel: bool
) -> Constraint:
    """Return calls in ``form``; text outside them contains none of ``starts``. Raises ``ConstraintError``."""
    call = either(*(_call(form, name, schema) for name, schema in functions.items()))
    several = parallel
    if form.opening:
        inside = one_or_more(call, literal(""), parallel=parallel and form.shared)
        call = sequence(token(form.opening), literal(form.line), inside, token(form.closing))
        several = parallel and not form.shared
    if not required:
        return constraint(text_with_calls(call, text(*starts), parallel=parallel))
    return constraint(one_or_more(call, literal(form.line), parallel=several))


def _call(form: XmlForm, name: str, schema: Mapping[str, Any]) -> Form:
    """Return one call. What an argument and the end of a call have in common stands at the end of the part before."""
    if not NAME.fullmatch(name):
        raise unsuitable_name(name)
    common = _common(form)
    marks = [token(mark) for mark in form.begin[:-1]]
    begin = literal(f"{form.begin[-1]}{name}{form.name_end}{form.line}{common}")
    end = literal(form.end[0].removeprefix(common))
    after = [*(token(mark) for mark in form.end[1:]), *([literal(form.line)] if form.opening else [])]
    return sequence(*marks, begin, *_Arguments(form, schema).parts(), end, *after)


def _common(form: XmlForm) -> str:
    return commonprefix((form.parameter, form.end[0]))


class _Arguments:
    """The arguments of one function."""

    def __init__(self, form: XmlForm, schema: Mapping[str, Any]) -> None:
        self._form = form
        self._field = str(schema.get(SCHEMA_FIELD, "the schema of the arguments"))
        self._schema = schema
        try:
            plain = plain_schema(dict(schema)).schema
        except Refusal as error:
            raise ConstraintError(f"{self._field}: {error}") from None
        self._plain: Mapping[str, Any] = plain
        if others := sorted(plain.keys() - UNDERSTOOD):
            raise self._error(f"the keyword {others[0]!r} cannot be enforced in the arguments of a call")
        if plain.get("type", "object") not in ("object", ["object"]):
            raise self._error("type must be 'object', as arguments of a call are")

    def parts(self) -> list[Form]:
        """Return the declared arguments in their order, and then others, if they are allowed."""
        properties, required = self._plain.get("properties", {}), self._plain.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise self._error("properties must be an object, required a list")
        more = self._plain.get("additionalProperties", not properties and not required)
        undeclared = {
            name: self._plain.get("additionalProperties", True) for name in required if name not in properties
        }
        results = []
        for key, schema in {**properties, **undeclared}.items():
            if schema is False and key in required:
                raise self._error(f"{key[:80]!r} is required and allows nothing")
            if schema is False:
                continue
            if not KEY.fullmatch(key):
                raise self._error(f"{key[:80]!r} cannot be the name of an argument in this format")
            argument = self._argument(literal(key), schema, argument_type(self._schema, key), f"properties.{key}")
            results.append(argument if key in required else optional(argument))
        if more is not False:
            results.append(star(self._other(more, [*properties, *undeclared])))
        return results

    def _other(self, schema: object, known: Sequence[str]) -> Form:
        """Return an argument that the schema does not declare; its name begins unlike the declared ones."""
        beginnings = "|".join(map(re.escape, known))
        key = text(*NOT_IN_KEYS, not_beginning=rf"[ \t]|{beginnings}" if known else r"[ \t]")
        kind = argument_type({**self._schema, "properties": {}}, "")
        return self._argument(key, schema, kind, "additionalProperties")

    def _argument(self, key: Form, schema: object, kind: ValueType, path: str) -> Form:
        form = self._form
        common = _common(form)
        before = form.line.join(form.key_end) + form.value_line
        branches = []
        for is_text, value in self._values(schema, kind, path):
            typed = "" if form.typed is None else form.typed[0 if is_text else 1]
            line = "" if value["type"] == "any_text" else form.value_line  # free text ends at the mark
            after = literal(f"{line}{form.value_end}{form.line}{common}")
            branches.append(sequence(literal(typed + before), value, after))
        return sequence(literal(form.parameter.removeprefix(common)), key, either(*branches))

    def _values(self, schema: object, kind: ValueType, path: str) -> Iterator[tuple[bool, Form]]:
        """Yield the notations of a value, and whether each is text that means itself."""
        form = self._form
        members = kind.members or ()
        if kind.is_open or kind.is_text:
            yield True, text(form.value_end)
            is_json = kind.is_open and form.typed is not None
        else:
            is_json = not (kind.is_string and members) or any(form.value_end in member for member in members)
            if not is_json:
                yield True, either(*map(literal, sorted(members)))
        if is_json:
            yield False, arguments(self._within(schema, path))

    def _within(self, schema: Any, path: str) -> Mapping[str, Any]:
        """Return a schema from within the arguments' one with everything that it refers to."""
        definitions: Any = dict(self._plain.get("$defs", {}))
        schema = {} if schema is True else schema
        if _refers_to_root([schema, definitions]):
            definitions[ROOT] = {key: value for key, value in self._plain.items() if key != "$defs"}
            definitions, schema = _redirected(definitions), _redirected(schema)
        return {**schema, **({"$defs": definitions} if definitions else {}), SCHEMA_FIELD: f"{self._field}.{path}"}

    def _error(self, message: str) -> ConstraintError:
        return ConstraintError(f"{self._field}: {message}")


def _refers_to_root(value: object) -> bool:
    if isinstance(value, Mapping):
        return value.get("$ref") == "#" or any(map(_refers_to_root, value.values()))
    return isinstance(value, list) and any(map(_refers_to_root, value))


def _redirected(value: Any) -> Any:
    """Return ``value`` with references to the definition of the root instead of the root."""
    if isinstance(value, Mapping):
        return {
            key: f"#/$defs/{ROOT}" if key == "$ref" and item == "#" else _redirected(item)
            for key, item in value.items()
        }
    return [_redirected(item) for item in value] if isinstance(value, list) else value
