"""Structural tags that enforce calls in the formats of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sglang_plug import Constraint

Schemas = Mapping[str, Mapping[str, Any]]
Around = Callable[[str], tuple[str, str]]
"""Name of a function -> what stands before and after its arguments."""


def calls_only(
    functions: Schemas, around: Around, *, parallel: bool, separator: str, opening: str = "", closing: str = ""
) -> Constraint:
    """A call, or several with ``separator`` between them if ``parallel``, and nothing else but what encloses them."""
    calls = {
        "type": "tags_with_separator",
        "tags": _tags(functions, around),
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


def object_around(name: str, key: str = "arguments") -> tuple[str, str]:
    """What stands around the arguments in an object that names a function."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": ', "}"


def _tags(functions: Schemas, around: Around) -> list[dict[str, Any]]:
    tags = []
    for name, schema in functions.items():
        begin, end = around(name)
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
    return tags


def _enclosed(part: dict[str, Any], opening: str, closing: str) -> dict[str, Any]:
    texts = [{"type": "const_string", "value": text} if text else None for text in (opening, closing)]
    elements = [one for one in (texts[0], part, texts[1]) if one is not None]
    return part if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _constraint(form: dict[str, Any]) -> Constraint:
    tag = {"type": "structural_tag", "format": form}
    return Constraint("structural_tag", json.dumps(tag))
