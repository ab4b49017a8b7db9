"""Grammars of bounded numbers match no number outside the bounds, and all inside up to a number of digits."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug_backends.grammars.json_schema.numbers import Bounds, decimals, integers
from sglang_plug_backends.grammars.refusal import Refusal


def matcher(expression: str) -> re.Pattern[str]:
    """Compile the expressions with ``re``, since they are regular."""
    text = re.sub(r'"([^"]*)"', lambda match: re.escape(match[1]), expression).replace(" ", "")
    return re.compile(text)


@settings(max_examples=150, deadline=None)
@given(st.integers(-5000, 5000), st.integers(0, 3000), st.booleans(), st.booleans())
def test_integers(minimum: int, more: int, above: bool, below: bool) -> None:
    maximum = minimum + more
    bounds = Bounds(minimum=Decimal(minimum), maximum=Decimal(maximum), above=above, below=below)
    inside = range(minimum + above, maximum + 1 - below)
    if not inside:
        with pytest.raises(Refusal):
            integers(bounds)
        return
    meant = matcher(integers(bounds))
    near = (
        {minimum + step for step in range(-12, 12)}
        | {maximum + step for step in range(-12, 12)}
        | {0, 9, 10, 99, 100, -1, -10}
    )
    for item in near:
        assert (meant.fullmatch(str(item)) is not None) == (item in inside), item
    assert not meant.fullmatch(f"0{max(inside[0], 1)}") and not meant.fullmatch("-0")


@settings(max_examples=100, deadline=None)
@given(st.integers(-3000, 3000), st.integers(1, 2000), st.sampled_from([0, 1, 3]), st.booleans(), st.booleans())
def test_decimals(minimum: int, more: int, decimal_places: int, above: bool, below: bool) -> None:
    low, high = Decimal(minimum).scaleb(-decimal_places), Decimal(minimum + more).scaleb(-decimal_places)
    meant = matcher(decimals(Bounds(minimum=low, maximum=high, above=above, below=below)))
    steps = [Decimal(step).scaleb(-4) for step in range(-15, 15)]
    for item in {edge + step for edge in (low, high) for step in steps} | {
        Decimal("0"),
        Decimal("-0.5"),
        Decimal("0.05"),
    }:
        inside = (low < item if above else low <= item) and (item < high if below else item <= high)
        text = f"{item:f}"
        if "e" not in text.lower() and not text.startswith("-0.0000") and text != "-0":
            assert (meant.fullmatch(text) is not None) == inside, text


@pytest.mark.parametrize(
    "limits", [{"minimum": Decimal(7)}, {"maximum": Decimal(-7)}, {"minimum": Decimal("0.25")}, {}]
)
def test_one_bound_or_none(limits: dict[str, Decimal]) -> None:
    bounds = Bounds(**limits)
    for write in (integers, decimals):
        meant = matcher(write(bounds))
        for item in (-123456, -8, -7, -6, 0, 1, 6, 7, 8, 987654321):
            inside = bounds.minimum is None or item >= bounds.minimum
            inside = inside and (bounds.maximum is None or item <= bounds.maximum)
            assert (meant.fullmatch(str(item)) is not None) == inside, item


def test_bounds_without_numbers_between() -> None:
    for minimum, maximum in (("5", "2"), ("1e30", "1e31"), ("-1e31", "-1e30")):
        with pytest.raises(Refusal, match="no number"):
            decimals(Bounds(minimum=Decimal(minimum), maximum=Decimal(maximum)))
    with pytest.raises(Refusal, match="no number"):
        integers(Bounds(minimum=Decimal("1.2"), maximum=Decimal("1.8")))
    with pytest.raises(Refusal, match="digits after the point"):
        decimals(Bounds(minimum=Decimal("1e-13")))
