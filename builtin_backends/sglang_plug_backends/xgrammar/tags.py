"""Structural tags: free text with constrained parts. The parts are written by our own converters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug_backends.grammars.notation import PYTHON
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.regex import regex_to_ebnf
from sglang_plug_backends.grammars.schema import Converter
from sglang_plug_backends.grammars.tags import FIELDS, Form, any_text, checked, parts, read_tag, text
from sglang_plug_backends.grammars.whitespace import Whitespace

from .ebnf import checked_ebnf
from .loops import with_recursion

TRIGGERED = "triggered_tags"
"""The format in whose text every byte may stand."""


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
    form = _format(read_tag(source), "format", Surroundings(whitespace, special), 0)
    if {"token", TRIGGERED} <= {one["type"] for one in parts(form)}:
        raise Refusal(f"a special token beside {TRIGGERED!r} cannot be enforced: it might be taken for text")
    return json.dumps({"type": "structural_tag", "format": form}, default=float)


def _format(given: Any, path: str, around: Surroundings, depth: int) -> Form:
    match kind := checked(given, path, depth):
        case "json_schema":
            return _grammar(_schema(given, path, around.whitespace))
        case "any_text" if given.keys() & FIELDS[kind]:
            return _grammar(any_text(given, path))
        case "regex":
            return _grammar(f"root ::= {regex_to_ebnf(text(given, 'pattern', path))}\n")
        case "token":
            name = text(given, "token", path)
            spelled = {"type": "const_string", "value": name}
            return {"type": "token", "token": around.special[name]} if name in around.special else spelled
        case "grammar":
            return _grammar(checked_ebnf(text(given, "grammar", path)))
    found = dict(given)
    if "content" in FIELDS[kind]:
        found["content"] = _format(given.get("content"), f"{path}/content", around, depth + 1)
    for field in FIELDS[kind] & {"elements", "tags"}:
        found[field] = [_format(one, f"{path}/{field}/{at}", around, depth + 1) for at, one in enumerate(given[field])]
    return found


def _grammar(source: str) -> Form:
    return {"type": "grammar", "grammar": with_recursion(source)}


def _schema(given: Form, path: str, whitespace: Whitespace) -> str:
    if "json_schema" not in given:
        raise Refusal(f"{path} needs json_schema")
    match given.get("style", "json"):
        case "json":
            return Converter(given["json_schema"], whitespace).grammar()
        case "python_arguments":
            return Converter(given["json_schema"], whitespace, PYTHON).arguments()
        case style:
            raise Refusal(f"the style {str(style)[:40]!r} at {path} is unknown; known: json, python_arguments")
