"""Structural tags: free text with constrained parts, which our own converters write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug_backends.grammars.ebnf.regex import regex_to_ebnf
from sglang_plug_backends.grammars.json_schema.notation import PYTHON
from sglang_plug_backends.grammars.json_schema.schema import Converter
from sglang_plug_backends.grammars.json_schema.whitespace import Whitespace
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.tags import FIELDS, Form, any_text, checked, in_schema, parts, read_tag, text

from .ebnf import checked_ebnf
from .repetitions import with_recursion

TRIGGERED = "triggered_tags"
"""The format whose text may contain any byte."""


@dataclass(frozen=True, slots=True)
class TagContext:
    """Context for writing the parts of a tag."""

    whitespace: Whitespace
    special: Mapping[str, int]
    """Special tokens by name."""


def prepare_tag(source: str, whitespace: Whitespace, special: Mapping[str, int]) -> str:
    """Convert the schemas and expressions of the structural tag in ``source`` to grammars. Raises ``Refusal``.

    ``special``: special tokens by name; others are spelled out.
    """
    form = _format(read_tag(source), "format", TagContext(whitespace, special), 0)
    if {"token", TRIGGERED} <= {part["type"] for part in parts(form)}:
        raise Refusal(f"a special token next to {TRIGGERED!r} cannot be enforced: it might be taken for text")
    return json.dumps({"type": "structural_tag", "format": form}, default=float)


def _format(form: Any, path: str, around: TagContext, depth: int) -> Form:
    match kind := checked(form, path, depth):
        case "json_schema":
            with in_schema(form, path):
                return _grammar(_schema(form, path, around.whitespace))
        case "any_text" if form.keys() & FIELDS[kind]:
            return _grammar(any_text(form, path))
        case "regex":
            return _grammar(f"root ::= {regex_to_ebnf(text(form, 'pattern', path))}\n")
        case "token":
            name = text(form, "token", path)
            spelled = {"type": "const_string", "value": name}
            return {"type": "token", "token": around.special[name]} if name in around.special else spelled
        case "grammar":
            return _grammar(checked_ebnf(text(form, "grammar", path)))
    result = dict(form)
    if "content" in FIELDS[kind]:
        result["content"] = _format(form.get("content"), f"{path}/content", around, depth + 1)
    for field in FIELDS[kind] & {"elements", "tags"}:
        result[field] = [
            _format(item, f"{path}/{field}/{at}", around, depth + 1) for at, item in enumerate(form[field])
        ]
    return result


def _grammar(source: str) -> Form:
    return {"type": "grammar", "grammar": with_recursion(source)}


def _schema(form: Form, path: str, whitespace: Whitespace) -> str:
    if "json_schema" not in form:
        raise Refusal(f"{path} needs json_schema")
    match form.get("style", "json"):
        case "json":
            return Converter(form["json_schema"], whitespace).grammar()
        case "python_arguments":
            return Converter(form["json_schema"], whitespace, PYTHON).arguments()
        case style:
            raise Refusal(f"the style {str(style)[:40]!r} at {path} is unknown; known: json, python_arguments")
