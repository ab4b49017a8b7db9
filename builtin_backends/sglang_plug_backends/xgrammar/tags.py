"""Structural tags: free text with constrained parts. The parts are written by our own converters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug_backends.grammars.notation import PYTHON
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.regex import regex_to_ebnf
from sglang_plug_backends.grammars.schema import MOST_DEPTH, Converter, parse
from sglang_plug_backends.grammars.whitespace import Whitespace

from .ebnf import checked_ebnf
from .loops import with_recursion

FIELDS: Mapping[str, frozenset[str]] = {
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style"}),
    "regex": frozenset({"pattern"}),
    "token": frozenset({"token"}),
    "grammar": frozenset({"grammar"}),
    "any_text": frozenset({"excludes"}),
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
FREE = frozenset({"any_text", "triggered_tags"})
"""Formats in which every byte may stand."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the parts of a tag are written with."""

    whitespace: Whitespace
    special: Mapping[str, int]
    """Special tokens by name."""


def prepare_tag(source: str, whitespace: Whitespace, special: Mapping[str, int]) -> str:
    """The structural tag in ``source`` with its schemas and expressions as grammars. Raises ``Refusal``.

    ``special``: special tokens by name; others are spelled.
    """
    tag = parse(source)
    if not isinstance(tag, dict):
        raise Refusal("a structural tag must be a JSON object")
    if "structures" in tag or "triggers" in tag:
        tag = _modern(tag)
    if tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), dict):
        raise Refusal("a structural tag needs type 'structural_tag' and a format, or structures and triggers")
    form = _format(tag["format"], "format", Surroundings(whitespace, special), 0)
    kinds = {one["type"] for one in _parts(form)}
    if "token" in kinds and kinds & FREE:
        raise Refusal(f"a special token beside {min(kinds & FREE)!r} cannot be enforced: it might be taken for text")
    return json.dumps({"type": "structural_tag", "format": form}, default=float)


def named_tokens(source: str, special: Mapping[str, int]) -> frozenset[int]:
    """The special tokens that a structural tag which was compiled names."""
    names = [one["token"] for one in _parts(json.loads(source).get("format", {})) if one.get("type") == "token"]
    return frozenset(special[name] for name in names if name in special)


def _parts(form: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A format and all formats within."""
    yield form
    for field in NESTED:
        inner = form.get(field, [])
        for one in inner if isinstance(inner, list) else [inner]:
            yield from _parts(one)


def _modern(tag: dict[str, Any]) -> dict[str, Any]:
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
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def _format(given: Any, path: str, around: Surroundings, depth: int) -> dict[str, Any]:
    if depth > MOST_DEPTH:
        raise Refusal(f"more than {MOST_DEPTH} levels at {path[:80]}")
    if not isinstance(given, dict) or given.get("type") not in FIELDS:
        kind = given.get("type") if isinstance(given, dict) else given
        raise Refusal(f"the format {str(kind)[:40]!r} at {path} cannot be enforced; known: {', '.join(FIELDS)}")
    kind = given["type"]
    for field in given.keys() - FIELDS[kind] - {"type"}:
        raise Refusal(f"{field[:80]!r} at {path} cannot be enforced")
    if kind == "json_schema":
        return {"type": "grammar", "grammar": with_recursion(_schema(given, path, around.whitespace))}
    if kind == "regex":
        expression = regex_to_ebnf(_text(given, "pattern", path))
        return {"type": "grammar", "grammar": with_recursion(f"root ::= {expression}\n")}
    if kind == "token":
        name = _text(given, "token", path)
        spelled = {"type": "const_string", "value": name}
        return {"type": "token", "token": around.special[name]} if name in around.special else spelled
    if kind == "grammar":
        return {"type": "grammar", "grammar": with_recursion(checked_ebnf(_text(given, "grammar", path)))}
    found = dict(given)
    if "content" in FIELDS[kind]:
        found["content"] = _format(given.get("content"), f"{path}/content", around, depth + 1)
    for field in FIELDS[kind] & {"elements", "tags"}:
        members = given.get(field)
        if not isinstance(members, list) or not members:
            raise Refusal(f"{path}/{field} must be a list with members")
        found[field] = [_format(one, f"{path}/{field}/{at}", around, depth + 1) for at, one in enumerate(members)]
    return found


def _schema(given: dict[str, Any], path: str, whitespace: Whitespace) -> str:
    if "json_schema" not in given:
        raise Refusal(f"{path} needs json_schema")
    match given.get("style", "json"):
        case "json":
            return Converter(given["json_schema"], whitespace).grammar()
        case "python_arguments":
            return Converter(given["json_schema"], whitespace, PYTHON).arguments()
        case style:
            raise Refusal(f"the style {str(style)[:40]!r} at {path} is unknown; known: json, python_arguments")


def _text(given: dict[str, Any], field: str, path: str) -> str:
    value = given.get(field)
    if not isinstance(value, str):
        raise Refusal(f"{path}/{field} must be text")
    return value
