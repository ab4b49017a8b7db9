from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug.testing import check_drafter
from sglang_plug_backends.ngram.drafter import CANDIDATES, NGramDrafter
from sglang_plug_backends.ngram.settings import NGramSettings


def guess(prompt: Sequence[int], output: Sequence[int], max_draft_tokens: int = 8, **settings: int) -> list[int]:
    drafter = NGramDrafter(NGramSettings(**settings)).begin(prompt, salt="")
    return list(drafter.propose(output, max_draft_tokens))


def test_it_keeps_the_contract() -> None:
    check_drafter("ngram")
    check_drafter(lambda: NGramDrafter(NGramSettings(min_match=1, max_match=1, window=0)))


def test_earlier_continuations_are_drafted() -> None:
    assert guess([1, 2, 3, 40, 41, 42, 50], [1, 2, 3], 3) == [40, 41, 42]
    assert guess([50], [1, 2, 3, 40, 41, 42, 1, 2, 3], 2) == [40, 41]


def test_fewer_tokens_than_must_match_are_not_enough() -> None:
    assert guess([1, 2, 3, 40], [9, 2, 3]) == []
    assert guess([1, 2, 3, 40], [9, 2, 3], 1, min_match=2) == [40]
    assert guess([1], [2]) == []


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    long, short = [7, 1, 2, 3, 70], [8, 1, 2, 3, 80]
    assert guess([*long, *short], [7, 1, 2, 3], 1) == [70]
    assert guess([*short, *long], [7, 1, 2, 3], 1) == [70]
    assert guess([*long, *short], [9, 1, 2, 3], 1) == [80]
    assert guess([*long, *short], [7, 1, 2, 3], 1, max_match=3) == [80]


def test_a_loop_goes_on() -> None:
    assert guess([5], [1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert guess([], [4] * 5, 3) == [4, 4, 4]


def test_a_prompt_is_looked_at_as_far_as_the_window_reaches() -> None:
    prompt = [1, 2, 3, 40, *range(100, 120)]
    assert guess(prompt, [1, 2, 3], 1, window=24) == [40]
    assert guess(prompt, [1, 2, 3], 1, window=23) == []
    assert guess(prompt, [1, 2, 3], 1, window=0) == []


def test_only_so_many_positions_are_compared() -> None:
    first = [7, 1, 2, 3, 70]
    others = [token for number in range(CANDIDATES) for token in (8, 1, 2, 3, 200 + number)]
    assert guess([*first, *others[5:]], [7, 1, 2, 3], 1) == [70]
    assert guess([*first, *others], [7, 1, 2, 3], 1) == [200 + CANDIDATES - 1]


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 5))
def test_it_finds_what_a_search_finds(seed: int, size: int, more: int) -> None:
    """The incremental index returns the same drafts as a search of the whole sequence."""
    generator = random.Random(seed)
    tokens = [generator.randrange(3) for _ in range(60)]
    settings = NGramSettings(min_match=size, max_match=size + more)
    drafter = NGramDrafter(settings).begin(tokens[:10], salt="")
    done = 10
    while done < len(tokens):
        count = generator.randint(1, 9)
        result = drafter.propose(tokens[done : done + count], 4)
        known = tokens[: done + count]
        positions = [
            position for position in range(size, len(known)) if known[position - size : position] == known[-size:]
        ]
        matches = [(matching(known, position, settings.max_match), position) for position in positions[-CANDIDATES:]]
        assert bool(result) == bool(matches)
        if matches:
            _, position = max(matches)
            assert result == [known[position + step % (len(known) - position)] for step in range(4)]
        done += count


def matching(known: list[int], position: int, limit: int) -> int:
    length = 0
    while length < min(limit, position) and known[position - 1 - length] == known[-1 - length]:
        length += 1
    return length


@pytest.mark.parametrize(
    "settings", [{"min_match": 0}, {"min_match": 5, "max_match": 4}, {"window": -1}], ids=lambda item: next(iter(item))
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        NGramSettings(**settings)
