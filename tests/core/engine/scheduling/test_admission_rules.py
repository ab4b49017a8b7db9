"""Reasons to defer the admission of a waiting sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Request, SamplingParams
from sglang_plug.contracts.serving.cache import Match
from sglang_plug.engine.scheduling.admission_rules import GrowthReserve, prefixes_being_computed
from sglang_plug.engine.sequences.sequence import Sequence

LONG = 100


@given(st.lists(st.booleans(), max_size=500), st.integers(0, 10**6))
def test_the_reserve_stays_within_its_bounds(retracted: list[bool], growth: int) -> None:
    reserve = GrowthReserve(0.5, minimum=0.1, decay=0.002, increase=0.2)
    for is_retraction in retracted:
        before = reserve.tokens(growth)
        if is_retraction:
            reserve.retracted()
            assert reserve.tokens(growth) >= before
        else:
            reserve.step_planned()
            assert reserve.tokens(growth) <= before
        assert int(0.1 * growth) <= reserve.tokens(growth) <= growth


def test_the_reserve_falls_to_its_minimum_and_rises_to_all() -> None:
    reserve = GrowthReserve()
    for _ in range(1000):
        reserve.step_planned()
    assert reserve.tokens(1000) == 100
    for _ in range(10):
        reserve.retracted()
    assert reserve.tokens(1000) == 1000


def sequence(tokens: list[int], computed: int = 0, cached: int = 0, node: object = "root") -> Sequence:
    result = Sequence.of(Request(id="a", tokens=tuple(tokens), params=SamplingParams()), 10_000)
    result.computed, result.match = computed, Match(slots=range(cached), node=node)
    return result


def test_sequences_that_compute_the_same_prefix_have_the_same_key() -> None:
    shared = list(range(LONG))
    first, second = sequence([*shared, 1]), sequence([*shared, 2])
    assert len(prefixes_being_computed([first, second])) == 1
    assert len(prefixes_being_computed([first, sequence([5, *shared])])) == 2
    assert len(prefixes_being_computed([first, sequence([*shared, 1], node="other")])) == 2


def test_the_keys_are_those_of_what_follows_the_cached_prefix() -> None:
    shared = list(range(LONG))
    first, second = sequence([1, *shared], cached=1), sequence([2, *shared], cached=1)
    assert len(prefixes_being_computed([first, second])) == 1


def test_only_long_prefixes_of_prompts_under_way_in_a_cache_count() -> None:
    tokens = list(range(LONG))
    decoding = sequence(tokens, computed=LONG)
    short = sequence(tokens[:10])
    without_cache = sequence(tokens, node=None)
    almost_cached = sequence(tokens, cached=LONG - 10)
    assert prefixes_being_computed([decoding, short, without_cache, almost_cached]) == set()
