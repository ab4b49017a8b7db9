"""Structural tags as callers write them: formats, their fields, and conversion of the older form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sglang_plug import SCHEMA_FIELD
from sglang_plug_backends.grammars.ebnf.free_text import free_text
from sglang_plug_backends.grammars.json_schema.plain_schema import MAX_DEPTH
from sglang_plug_backends.grammars.json_schema.schema import parse

from .refusal import Refusal

Form = dict[str, Any]
"""A format of a structural tag."""

FIELDS: Mapping[str, frozenset[str]] = {
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style"}),
    "regex": frozenset({"pattern"}),
    "token": frozenset({"token"}),
    "grammar": frozenset({"grammar"}),
    "any_text": frozenset({"excludes", "not_beginning"}),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
    "tags_with_separator": frozenset({"separator", "tags", "at_least_one", "stop_after_first"}),
    "optional": frozenset({"content"}),
    "plus": frozenset({"content"}),
    "star": frozenset({"content"}),
}
"""Formats of structural tags that are enforced, and their fields."""
MAX_SHOWN = 120
NESTED = ("content", "elements", "tags")
"""Fields that hold formats."""


def read_tag(source: str) -> Form:
    """Return the format in the structural tag ``source``. Raises ``Refusal``."""
    tag = parse(source)
    if not isinstance(tag, dict):
        raise Refusal("a structural tag must be a JSON object")
    if "structures" in tag or "triggers" in tag:
        return _modern(tag)
    form = tag.get("format")
    if tag.get("type") != "structural_tag" or not isinstance(form, dict):
        raise Refusal("a structural tag needs type 'structural_tag' and a format, or structures and triggers")
    return form


def checked(form: Any, path: str, depth: int) -> str:
    """Return the type of a format after checking its fields and that its members, if any, are a list.

    Members of ``tags`` that have no type get the only one that they may have. Raises ``Refusal``.
    """
    if depth > MAX_DEPTH:
        raise Refusal(f"more than {MAX_DEPTH} levels at {path[:80]}")
    kind = form.get("type") if isinstance(form, dict) else form
    if not isinstance(form, dict) or not isinstance(kind, str) or kind not in FIELDS:
        raise Refusal(f"the format {str(kind)[:40]!r} at {path} cannot be enforced; known: {', '.join(FIELDS)}")
    for field in form.keys() - FIELDS[kind] - {"type"}:
        raise Refusal(f"{field[:80]!r} at {path} cannot be enforced")
    for field in FIELDS[kind] & {"elements", "tags"}:
        if not isinstance(form.get(field), list) or not form[field]:
            raise Refusal(f"{path}/{field} must be a list with members")
    for member in form.get("tags", []):
        if isinstance(member, dict):
            member.setdefault("type", "tag")
    return kind


def parts(form: Form) -> Iterator[Form]:
    """Yield a format and all formats within it."""
    yield form
    for field in NESTED:
        inner = form.get(field, [])
        for item in inner if isinstance(inner, list) else [inner]:
            yield from parts(item)


def named_tokens(form: Form, special: Mapping[str, int]) -> frozenset[int]:
    """Return the special tokens that a format names, given that it was enforced."""
    names = [part["token"] for part in parts(form) if part.get("type") == "token"]
    return frozenset(special[name] for name in names if name in special)


@contextmanager
def in_schema(form: Form, path: str) -> Iterator[None]:
    """Add the path of the schema to each ``Refusal`` raised in the context: the schema of the format ``form``."""
    schema = form.get("json_schema")
    field = schema.get(SCHEMA_FIELD) if isinstance(schema, dict) else None
    try:
        yield
    except Refusal as error:
        location = field[:MAX_SHOWN] if isinstance(field, str) else f"{path}/json_schema"
        raise Refusal(f"{location}: {error}") from None


def text(form: Form, field: str, path: str) -> str:
    """Return a text field. Raises ``Refusal``."""
    value = form.get(field)
    if not isinstance(value, str):
        raise Refusal(f"{path}/{field} must be text")
    return value


def texts(form: Form, field: str, path: str) -> list[str]:
    """Return a field that is an optional list of texts. Raises ``Refusal``."""
    result = form.get(field, [])
    if not isinstance(result, list) or not all(isinstance(item, str) and item for item in result):
        raise Refusal(f"{path}/{field} must be a list of texts")
    return result


def any_text(form: Form, path: str) -> str:
    """Return the grammar of text that excludes some texts. Raises ``Refusal``."""
    return free_text(
        texts(form, "excludes", path), text(form, "not_beginning", path) if "not_beginning" in form else ""
    )


def _modern(tag: dict[str, Any]) -> Form:
    """Convert the older form, ``structures`` and ``triggers``, to the current one."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise Refusal("structures and triggers of a structural tag must be lists")
    tags = []
    for index, structure in enumerate(structures):
        if not isinstance(structure, dict) or not {"begin", "end"} <= structure.keys() <= {"begin", "schema", "end"}:
            raise Refusal(f"structures/{index} must have begin, schema and end")
        content = {"type": "json_schema", "json_schema": structure.get("schema", {"type": "object"})}
        tags.append({"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}
