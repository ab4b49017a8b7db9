"""EBNF expressions for numbers within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from sglang_plug_backends.grammars.refusal import Refusal

MAX_DIGITS = 18
"""Maximum digits of an integer and of each part of a decimal, which every JSON reader accepts."""
DECIMALS = 4
"""Maximum digits after the point of numbers with bounds, unless a bound has more."""
MAX_DECIMALS = 12

Digits = tuple[tuple[int, int], ...]
"""First and last digit of each position."""

INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{MAX_DIGITS - 1}}})'
NUMBER = f'{INTEGER} ("." [0-9]{{1,{MAX_DIGITS}}})? ([eE] [+-]? [0-9]{{1,2}})?'


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Minimum and maximum; ``above`` and ``below`` exclude the bound itself."""

    minimum: Decimal | None = None
    maximum: Decimal | None = None
    above: bool = False
    below: bool = False


def integers(bounds: Bounds) -> str:
    """Return an expression for the integers within ``bounds``. Raises ``Refusal`` if there are none."""
    minimum, maximum = _whole(bounds)
    return _signed(minimum, maximum, 0)


def decimals(bounds: Bounds) -> str:
    """Return an expression for the numbers within ``bounds``. Raises ``Refusal`` if there are none."""
    decimal_places = max(
        [DECIMALS, *(_decimal_places(item) for item in (bounds.minimum, bounds.maximum) if item is not None)]
    )
    if decimal_places > MAX_DECIMALS:
        raise Refusal(f"a bound with more than {MAX_DECIMALS} digits after the point")
    texts = []
    for digits in range(decimal_places, -1, -1):
        try:
            texts.append(_signed(*_whole(_scaled(bounds, digits)), digits))
        except Refusal:  # there is no number with so few digits
            continue
    if not texts:
        raise Refusal("bounds between which there is no number")
    return " | ".join(texts)


def _scaled(bounds: Bounds, digits: int) -> Bounds:
    scale = Decimal(10) ** digits
    minimum = None if bounds.minimum is None else bounds.minimum * scale
    maximum = None if bounds.maximum is None else bounds.maximum * scale
    return replace(bounds, minimum=minimum, maximum=maximum)


def _whole(bounds: Bounds) -> tuple[int | None, int | None]:
    """Return the first and the last integer within ``bounds``."""
    minimum, maximum = bounds.minimum, bounds.maximum
    first = None if minimum is None else int(minimum.to_integral_value(ROUND_CEILING))
    last = None if maximum is None else int(maximum.to_integral_value(ROUND_FLOOR))
    if first is not None and bounds.above and first == minimum:
        first += 1
    if last is not None and bounds.below and last == maximum:
        last -= 1
    return first, last


def _decimal_places(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _signed(minimum: int | None, maximum: int | None, decimal_places: int) -> str:
    """Return an expression for ``n / 10**decimal_places``, ``minimum <= n <= maximum``, with all decimal places."""
    limit = 10 ** (MAX_DIGITS + decimal_places) - 1
    low = -limit if minimum is None else minimum
    high = limit if maximum is None else maximum
    if low > high or low > limit or high < -limit:
        raise Refusal("bounds between which there is no number")
    low, high = max(low, -limit), min(high, limit)
    results = []
    if low < 0:
        results += [f'"-" {text}' for text in _texts(max(1, -high), -low, decimal_places)]
    if high >= 0:
        results += _texts(max(0, low), high, decimal_places)
    return " | ".join(results)


def _texts(low: int, high: int, decimal_places: int) -> Iterator[str]:
    for digits in _spans(low, high, decimal_places + 1):
        parts = [f"[{first}-{last}]" if first < last else f'"{first}"' for first, last in digits]
        if decimal_places:
            parts.insert(len(parts) - decimal_places, '"."')
        yield " ".join(_compressed(parts))


def _compressed(parts: list[str]) -> Iterator[str]:
    """Merge runs of the same class into one with a count."""
    at = 0
    while at < len(parts):
        end = at
        while end < len(parts) and parts[end] == parts[at]:
            end += 1
        yield parts[at] if end - at == 1 else f"{parts[at]}{{{end - at}}}"
        at = end


def _spans(low: int, high: int, min_width: int) -> Iterator[Digits]:
    """Cover ``low..high`` with spans whose digits vary independently; at least ``min_width`` digits each."""
    width = max(min_width, len(str(low)))
    while low <= high:
        top = min(high, 10**width - 1)
        yield from _same_width(str(low).zfill(width), str(top).zfill(width))
        low, width = top + 1, width + 1


def _same_width(low: str, high: str) -> Iterator[Digits]:
    if not low:
        yield ()
        return
    first, last = int(low[0]), int(high[0])
    remaining = len(low) - 1
    nothing, everything = "0" * remaining, "9" * remaining
    if first == last:
        yield from (((first, first), *tail) for tail in _same_width(low[1:], high[1:]))
        return
    start, stop = first, last
    if low[1:] != nothing:
        yield from (((first, first), *tail) for tail in _same_width(low[1:], everything))
        start += 1
    if high[1:] != everything:
        stop -= 1
    if start <= stop:
        yield ((start, stop), *(((0, 9),) * remaining))
    if high[1:] != everything:
        yield from (((last, last), *tail) for tail in _same_width(nothing, high[1:]))
