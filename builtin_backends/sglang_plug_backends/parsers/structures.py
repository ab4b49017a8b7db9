"""Structural tags that enforce calls in the formats of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang_plug import Constraint

Schemas = Mapping[str, Mapping[str, Any]]
Form = dict[str, Any]
"""A part of a structural tag."""
Around = Callable[[str], tuple[str, str]]
"""Name of a function -> what stands before and after its arguments."""


def calls_only(
    functions: Schemas,
    around: Around,
    *,
    parallel: bool,
    separator: str,
    opening: str = "",
    closing: str = "",
    style: str = "json",
) -> Constraint:
    """A call, or several with ``separator`` between them if ``parallel``, and nothing else but what encloses them.

    ``style``: how the arguments are written, ``json`` or ``python_arguments``.
    """
    calls = {
        "type": "tags_with_separator",
        "tags": _tags(functions, around, style),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    return _constraint(_enclosed(calls, opening, closing))


def text_with_calls(functions: Schemas, around: Around, trigger: str, *, parallel: bool) -> Constraint:
    """Text, in which a call must be well formed once ``trigger``, with which it begins, is there."""
    return _constraint(
        {
            "type": "triggered_tags",
            "triggers": [trigger],
            "tags": _tags(functions, around),
            "stop_after_first": not parallel,
        }
    )


def token(name: str) -> Form:
    """A special token; its name is spelled where the model has none that is called so."""
    return {"type": "token", "token": name}


def literal(text: str) -> Form:
    """Exactly this text."""
    return {"type": "const_string", "value": text}


def arguments(schema: Mapping[str, Any]) -> Form:
    """The arguments of a function, as JSON."""
    return {"type": "json_schema", "json_schema": schema}


def sequence(*parts: Form) -> Form:
    """One after the other."""
    return {"type": "sequence", "elements": list(parts)}


def one_or_more(calls: Sequence[Form], separator: Form, *, parallel: bool) -> Constraint:
    """One of ``calls``, or several with ``separator`` between them if ``parallel``, and nothing else."""
    call = calls[0] if len(calls) == 1 else {"type": "or", "elements": list(calls)}
    more = {"type": "star", "content": sequence(separator, call)}
    return _constraint(sequence(call, more) if parallel else call)


def object_around(name: str, key: str = "arguments") -> tuple[str, str]:
    """What stands around the arguments in an object that names a function."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": ', "}"


def _tags(functions: Schemas, around: Around, style: str = "json") -> list[Form]:
    tags = []
    for name, schema in functions.items():
        begin, end = around(name)
        content = arguments(schema)
        if style != "json":
            content["style"] = style
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return tags


def _enclosed(part: Form, opening: str, closing: str) -> Form:
    if not opening and not closing:
        return part
    return sequence(*([literal(opening)] if opening else []), part, *([literal(closing)] if closing else []))


def _constraint(form: Form) -> Constraint:
    tag = {"type": "structural_tag", "format": form}
    return Constraint("structural_tag", json.dumps(tag))
