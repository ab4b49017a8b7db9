"""EBNF expressions for strings and numbers of a JSON schema."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sglang_plug_backends.grammars.ebnf.characters import JSON_PLAIN
from sglang_plug_backends.grammars.ebnf.regex import MAX_REPEATS, pattern_to_ebnf
from sglang_plug_backends.grammars.refusal import Refusal

from .formats import FORMATS
from .keywords import BY_TYPE
from .numbers import INTEGER, NUMBER, Bounds, decimals, integers


def text(schema: dict[str, Any], path: str) -> str:
    """Return an expression for strings. Raises ``Refusal``."""
    minimum, maximum = count(schema, "minLength", path) or 0, count(schema, "maxLength", path)
    keywords: list[str] = [key for key in ("pattern", "format") if key in schema]
    keywords += ["minLength or maxLength"] if minimum or maximum is not None else []
    if len(keywords) > 1:
        raise Refusal(f"{' together with '.join(keywords)} at {path} cannot be enforced")
    if "format" in schema:
        pattern = FORMATS.get(str(schema["format"]))
        if pattern is None:
            raise Refusal(f"the format {str(schema['format'])[:40]!r} at {path} cannot be enforced")
        return _quoted(pattern_to_ebnf(f"^(?:{pattern})$"))
    if "pattern" in schema:
        return _quoted(_pattern(schema["pattern"], path))
    if maximum is None and minimum < 2:
        return "filled" if minimum else "string"
    if minimum > MAX_REPEATS or (maximum is not None and maximum < minimum):
        raise Refusal(f"minLength at {path} is above maxLength or {MAX_REPEATS}")
    bound = "" if maximum is None else min(maximum, MAX_REPEATS)
    return _quoted('""' if bound == 0 else f"{JSON_PLAIN.ebnf()}{{{minimum},{bound}}}")


def _quoted(inside: str) -> str:
    return f'("\\"" ({inside}) "\\"")'


def number(kind: str, schema: dict[str, Any], path: str) -> str:
    """Return an expression for numbers or integers. Raises ``Refusal``."""
    limits: dict[str, Decimal] = {}
    for key in BY_TYPE["number"]:
        if key in schema:
            value = schema[key]
            if isinstance(value, bool) or not isinstance(value, int | Decimal):
                raise Refusal(f"{key} at {path} must be a number, which is the limit itself")
            limits[key] = Decimal(value)
    if not limits:
        return f"({INTEGER if kind == 'integer' else NUMBER})"
    minimum, above = _tighter(limits.get("minimum"), limits.get("exclusiveMinimum"), max)
    maximum, below = _tighter(limits.get("maximum"), limits.get("exclusiveMaximum"), min)
    within: Callable[[Bounds], str] = integers if kind == "integer" else decimals
    try:
        return f"({within(Bounds(minimum=minimum, maximum=maximum, above=above, below=below))})"
    except Refusal as error:
        raise Refusal(f"minimum or maximum at {path}: {error}") from None


def _tighter(included: Decimal | None, excluded: Decimal | None, pick: Any) -> tuple[Decimal | None, bool]:
    """Return the effective bound and whether it is exclusive."""
    if included is None or excluded is None:
        return (included if excluded is None else excluded), excluded is not None
    return pick(included, excluded), pick(included, excluded) == excluded


def _pattern(pattern: Any, path: str) -> str:
    if not isinstance(pattern, str):
        raise Refusal(f"pattern at {path} must be text")
    try:
        return pattern_to_ebnf(pattern)
    except Refusal as error:
        raise Refusal(f"pattern at {path}: {error}") from None


def count(schema: dict[str, Any], key: str, path: str) -> int | None:
    """Return a limit if it is set. Raises ``Refusal``."""
    if key not in schema:
        return None
    value = schema[key]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refusal(f"{key} at {path} must be a whole number of at least 0")
    return value
