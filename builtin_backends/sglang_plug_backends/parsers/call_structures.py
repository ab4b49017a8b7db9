"""Structural tags that enforce calls in the formats of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sglang_plug import Constraint, ConstraintError

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
"""Expression for the beginning of an object that may name a function.

Its first key is one of a call, or may be one in escaped form.
"""
Around = Callable[[str], tuple[str, str]]
"""Name of a function -> texts before and after its arguments."""


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
    """Return one call, or several with ``separator`` if ``parallel``, and the text around them.

    ``style``: notation of the arguments, ``json`` or ``python_arguments``.
    """
    tags = []
    for name, schema in functions.items():
        begin, end = around(name)
        tags.append(sequence(literal(begin), arguments(schema, style), literal(end)))
    result = one_or_more(either(*tags), literal(separator), parallel=parallel)
    return sequence(*([literal(opening)] if opening else []), result, *([literal(closing)] if closing else []))


def unsuitable_name(name: str) -> ConstraintError:
    """Return the error for a function whose name cannot stand in a call."""
    reason = "its name contains whitespace or a character that the call format reserves"
    return ConstraintError(f"the function {name!r} cannot be called: {reason}")


def text_with_calls(calls: Form, gap: Form, *, parallel: bool, first: Form | None = None) -> Form:
    """Return text with ``calls`` in it: any number if ``parallel``, otherwise one at the end.

    ``gap``: the text before, between and after them; ``first``: the beginning of the output, if not a gap.
    """
    return sequence(gap if first is None else first, star(sequence(calls, gap)) if parallel else optional(calls))


def text(*without: str, not_beginning: str = "") -> Form:
    """Return text that contains none of ``without`` and has no beginning that matches an expression."""
    return {
        "type": "any_text",
        "excludes": list(without),
        **({"not_beginning": not_beginning} if not_beginning else {}),
    }


def token(name: str) -> Form:
    """Return a special token, spelled out if the model has none of that name."""
    return {"type": "token", "token": name}


def literal(text: str) -> Form:
    """Return a literal text."""
    return {"type": "const_string", "value": text}


def arguments(schema: Mapping[str, Any], style: str = "json") -> Form:
    """Return the arguments of a function, as JSON or in ``style``."""
    return {"type": "json_schema", "json_schema": schema, **({} if style == "json" else {"style": style})}


def sequence(*parts: Form) -> Form:
    """Return a concatenation."""
    return {"type": "sequence", "elements": list(parts)}


def either(*branches: Form) -> Form:
    """Return an alternation."""
    return branches[0] if len(branches) == 1 else {"type": "or", "elements": list(branches)}


def optional(part: Form) -> Form:
    """Return an optional part."""
    return {"type": "optional", "content": part}


def star(part: Form) -> Form:
    """Return a part repeated any number of times."""
    return {"type": "star", "content": part}


def one_or_more(call: Form, separator: Form, *, parallel: bool) -> Form:
    """Return ``call``, or several with ``separator`` between them if ``parallel``."""
    return sequence(call, star(sequence(separator, call))) if parallel else call


def constraint(form: Form) -> Constraint:
    """Return the constraint on outputs."""
    return Constraint("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


def object_around(name: str, key: str = "arguments") -> tuple[str, str]:
    """Return the texts around the arguments in an object that names a function."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": ', "}"
