"""Character sets satisfy the laws of set algebra, and contain no surrogates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_backends.grammars.ebnf.characters import ALL, LAST, Characters

EDGES = (0, 1, 2, 64, 0xD7FE, 0xD7FF, 0xD800, 0xDBFF, 0xDFFF, 0xE000, 0xE001, LAST - 1, LAST)
POINTS = frozenset(point for point in EDGES if not 0xD800 <= point <= 0xDFFF)
"""Code points at which members are compared."""
sets = st.lists(st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES)).map(sorted).map(tuple), max_size=5)


def points(characters: Characters) -> frozenset[int]:
    assert all(first <= last for first, last in characters.ranges)
    assert all(left[1] + 1 < right[0] for left, right in zip(characters.ranges, characters.ranges[1:], strict=False))
    return frozenset(point for point in EDGES if chr(point) in characters)


@given(sets, sets)
def test_operations_are_those_of_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    characters, other = Characters(left), Characters(right)
    assert points(characters) == {point for point in POINTS for first, last in left if first <= point <= last}
    assert points(characters | other) == points(characters) | points(other)
    assert points(characters & other) == points(characters) & points(other)
    assert points(characters - other) == points(characters) - points(other)
    assert points(~characters) == POINTS - points(characters)
    assert (~~characters).ranges == characters.ranges and (characters | ~characters).ranges == ALL.ranges
    assert bool(characters) == bool(characters.ranges)
