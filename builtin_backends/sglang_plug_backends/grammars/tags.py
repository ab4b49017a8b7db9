"""Structural tags as callers write them: their formats, the fields of each, and the older form as the newer one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .free_text import free_text
from .refusal import Refusal
from .schema import MOST_DEPTH, parse

Form = dict[str, Any]
"""A format."""

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
NESTED = ("content", "elements", "tags")
"""Fields that hold formats."""


def read_tag(source: str) -> Form:
    """The format in the structural tag ``source``. Raises ``Refusal``."""
    tag = parse(source)
    if not isinstance(tag, dict):
        raise Refusal("a structural tag must be a JSON object")
    if "structures" in tag or "triggers" in tag:
        return _modern(tag)
    form = tag.get("format")
    if tag.get("type") != "structural_tag" or not isinstance(form, dict):
        raise Refusal("a structural tag needs type 'structural_tag' and a format, or structures and triggers")
    return form


def checked(given: Any, path: str, depth: int) -> str:
    """The type of a format whose own fields are known, and whose members, if it has some, are a list.

    Raises ``Refusal``.
    """
    if depth > MOST_DEPTH:
        raise Refusal(f"more than {MOST_DEPTH} levels at {path[:80]}")
    kind = given.get("type") if isinstance(given, dict) else given
    if not isinstance(given, dict) or not isinstance(kind, str) or kind not in FIELDS:
        raise Refusal(f"the format {str(kind)[:40]!r} at {path} cannot be enforced; known: {', '.join(FIELDS)}")
    for field in given.keys() - FIELDS[kind] - {"type"}:
        raise Refusal(f"{field[:80]!r} at {path} cannot be enforced")
    for field in FIELDS[kind] & {"elements", "tags"}:
        if not isinstance(given.get(field), list) or not given[field]:
            raise Refusal(f"{path}/{field} must be a list with members")
    return kind


def parts(form: Form) -> Iterator[Form]:
    """A format and all formats within."""
    yield form
    for field in NESTED:
        inner = form.get(field, [])
        for one in inner if isinstance(inner, list) else [inner]:
            yield from parts(one)


def named_tokens(form: Form, special: Mapping[str, int]) -> frozenset[int]:
    """The special tokens that a format names, which was enforced."""
    names = [one["token"] for one in parts(form) if one.get("type") == "token"]
    return frozenset(special[name] for name in names if name in special)


def text(given: Form, field: str, path: str) -> str:
    """A field that is text. Raises ``Refusal``."""
    value = given.get(field)
    if not isinstance(value, str):
        raise Refusal(f"{path}/{field} must be text")
    return value


def texts(given: Form, field: str, path: str) -> list[str]:
    """A field that is a list of texts, which may be missing. Raises ``Refusal``."""
    found = given.get(field, [])
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise Refusal(f"{path}/{field} must be a list of texts")
    return found


def any_text(given: Form, path: str) -> str:
    """The grammar of a text in which something must not stand. Raises ``Refusal``."""
    return free_text(
        texts(given, "excludes", path), text(given, "not_beginning", path) if "not_beginning" in given else ""
    )


def _modern(tag: dict[str, Any]) -> Form:
    """The older form, ``structures`` and ``triggers``, as the newer one."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise Refusal("structures and triggers of a structural tag must be lists")
    tags = []
    for index, one in enumerate(structures):
        if not isinstance(one, dict) or not {"begin", "end"} <= one.keys() <= {"begin", "schema", "end"}:
            raise Refusal(f"structures/{index} must have begin, schema and end")
        content = {"type": "json_schema", "json_schema": one.get("schema", {"type": "object"})}
        tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}
