"""Structural tags: free text with constrained parts. The parts are written by our own converters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .ebnf import check_ebnf
from .refusal import Refusal
from .regex import regex_to_ebnf
from .schema import MOST_DEPTH, Converter, parse
from .settings import XGrammarSettings

FIELDS: Mapping[str, frozenset[str]] = {
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style"}),
    "regex": frozenset({"pattern"}),
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


def prepare_tag(source: str, settings: XGrammarSettings) -> str:
    """The structural tag in ``source`` with its schemas and expressions as grammars. Raises ``Refusal``."""
    tag = parse(source)
    if not isinstance(tag, dict):
        raise Refusal("a structural tag must be a JSON object")
    if "structures" in tag or "triggers" in tag:
        tag = _modern(tag)
    if tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), dict):
        raise Refusal("a structural tag needs type 'structural_tag' and a format, or structures and triggers")
    return json.dumps(
        {"type": "structural_tag", "format": _format(tag["format"], "format", settings, 0)}, default=float
    )


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


def _format(given: Any, path: str, settings: XGrammarSettings, depth: int) -> dict[str, Any]:
    if depth > MOST_DEPTH:
        raise Refusal(f"more than {MOST_DEPTH} levels at {path[:80]}")
    if not isinstance(given, dict) or given.get("type") not in FIELDS:
        kind = given.get("type") if isinstance(given, dict) else given
        raise Refusal(f"the format {str(kind)[:40]!r} at {path} cannot be enforced; known: {', '.join(FIELDS)}")
    kind = given["type"]
    for field in given.keys() - FIELDS[kind] - {"type"}:
        raise Refusal(f"{field[:80]!r} at {path} cannot be enforced")
    if kind == "json_schema":
        if given.get("style", "json") != "json" or "json_schema" not in given:
            raise Refusal(f"{path} needs json_schema, with the style 'json'")
        return {"type": "grammar", "grammar": Converter(given["json_schema"], settings).grammar()}
    if kind == "regex":
        return {"type": "grammar", "grammar": f"root ::= {regex_to_ebnf(_text(given, 'pattern', path))}\n"}
    if kind == "grammar":
        check_ebnf(_text(given, "grammar", path))
    found = dict(given)
    if "content" in FIELDS[kind]:
        found["content"] = _format(given.get("content"), f"{path}/content", settings, depth + 1)
    for field in FIELDS[kind] & {"elements", "tags"}:
        members = given.get(field)
        if not isinstance(members, list) or not members:
            raise Refusal(f"{path}/{field} must be a list with members")
        found[field] = [_format(one, f"{path}/{field}/{at}", settings, depth + 1) for at, one in enumerate(members)]
    return found


def _text(given: dict[str, Any], field: str, path: str) -> str:
    value = given.get(field)
    if not isinstance(value, str):
        raise Refusal(f"{path}/{field} must be text")
    return value
