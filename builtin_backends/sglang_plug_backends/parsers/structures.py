"""Structural tags that enforce calls in the formats of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sglang_plug import Constraint

from .json_text import ARGUMENTS, IDS, NAME

Schemas = Mapping[str, Mapping[str, Any]]
Form = dict[str, Any]
"""A part of a structural tag."""
SPACE = r"[ \t\r\n]*"
OBJECT = rf'{SPACE}\{{{SPACE}"'
"""Expression for the beginning of an object that has a key."""
KEYS = (NAME, *ARGUMENTS, *IDS, "type")
STARTS = sorted({key[:count] for key in KEYS for count in range(len(key) + 1)})
OBJECT_OF_CALL = rf"{OBJECT}(?:(?:{'|'.join(KEYS)})\"|(?:{'|'.join(STARTS)})\\)"
"""The same where the object may name a function: its first key is one of a call, or may be behind an escape."""
Around = Callable[[str], tuple[str, str]]
"""Name of a function -> what stands before and after its arguments."""


def calls(
    functions: Schemas,
    around: Around,
    *,
    parallel: bool,
    separator: str,
    opening: str = "",
    closing: str = "",
    style: str = "json",
) -> Form:
    """A call, or several with ``separator`` between them if ``parallel``, and what encloses them.

    ``style``: how the arguments are written, ``json`` or ``python_arguments``.
    """
    tags = []
    for name, schema in functions.items():
        begin, end = around(name)
        tags.append(sequence(literal(begin), arguments(schema, style), literal(end)))
    found = one_or_more(either(*tags), literal(separator), parallel=parallel)
    return sequence(*([literal(opening)] if opening else []), found, *([literal(closing)] if closing else []))


def text_with_calls(calls: Form, gap: Form, *, parallel: bool, first: Form | None = None) -> Form:
    """Text, in which ``calls`` may stand: any number of times if ``parallel``, otherwise once and at the end.

    ``gap``: the text before, between and after them; ``first``: what the output begins with, if not with a gap.
    """
    return sequence(gap if first is None else first, star(sequence(calls, gap)) if parallel else optional(calls))


def text(*without: str, not_beginning: str = "") -> Form:
    """Any text in which none of ``without`` stands, and no beginning of which matches an expression."""
    return {
        "type": "any_text",
        "excludes": list(without),
        **({"not_beginning": not_beginning} if not_beginning else {}),
    }


def token(name: str) -> Form:
    """A special token; its name is spelled where the model has none that is called so."""
    return {"type": "token", "token": name}


def literal(text: str) -> Form:
    """Exactly this text."""
    return {"type": "const_string", "value": text}


def arguments(schema: Mapping[str, Any], style: str = "json") -> Form:
    """The arguments of a function, as JSON or as ``style`` says."""
    return {"type": "json_schema", "json_schema": schema, **({} if style == "json" else {"style": style})}


def sequence(*parts: Form) -> Form:
    """One after the other."""
    return {"type": "sequence", "elements": list(parts)}


def either(*branches: Form) -> Form:
    """One of them."""
    return branches[0] if len(branches) == 1 else {"type": "or", "elements": list(branches)}


def optional(part: Form) -> Form:
    """It or nothing."""
    return {"type": "optional", "content": part}


def star(part: Form) -> Form:
    """It any number of times, or nothing."""
    return {"type": "star", "content": part}


def one_or_more(call: Form, separator: Form, *, parallel: bool) -> Form:
    """``call``, or several with ``separator`` between them if ``parallel``."""
    return sequence(call, star(sequence(separator, call))) if parallel else call


def constraint(form: Form) -> Constraint:
    """What outputs must look like."""
    return Constraint("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


def object_around(name: str, key: str = "arguments") -> tuple[str, str]:
    """What stands around the arguments in an object that names a function."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": ', "}"
