"""Tests of the scores of choices: which tokens of an answer belong to a choice."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_lang.backends.scoring import scored_choices


def answer(*tokens: str | None, before: int = 0) -> dict[str, Any]:
    """An answer for a prompt whose ``before`` first tokens are not scored; log-probability -1, -2, ..."""
    entries = [(-float(index + 1), index, text) for index, text in enumerate(tokens)]
    return {"meta_info": {"input_token_logprobs": entries, "prompt_tokens": len(entries) + before}}


def tokens(choices: list[str], answers: list[dict[str, Any]], prompt_len: int = 0) -> list[tuple[int, ...]]:
    return [choice.tokens for choice in scored_choices(choices, answers, prompt_len)]


def test_the_prompts_own_tokens_are_left_out() -> None:
    scored = scored_choices(["Paris"], [answer("is", " ", "Pa", "ris")], 0)
    assert (scored[0].tokens, scored[0].logprobs) == ((2, 3), (-3.0, -4.0))


def test_a_token_that_joins_both_is_the_choices() -> None:
    assert tokens(["Paris", "Rome"], [answer("is", " Paris"), answer("is", " Rome", before=9)]) == [(1,), (1,)]


def test_all_are_scored_from_the_same_character_on() -> None:
    assert tokens(["Paris", "xyz"], [answer("is", " Paris"), answer("is", " ", "xyz")]) == [(1,), (1, 2)]


def test_without_texts_tokens_are_counted() -> None:
    assert tokens(["Paris"], [answer(None, None, None, before=4)], 6) == [(2,)]
    assert tokens(["Paris"], [answer("is", "Par�", before=4)], 5) == [(1,)]
    assert tokens(["Paris"], [answer(None, before=4)], 9) == [(0,)]


def test_the_first_token_of_all_has_no_probability() -> None:
    scored = scored_choices(["a"], [{"meta_info": {"input_token_logprobs": [(None, 5, "a")], "prompt_tokens": 1}}], 0)
    assert scored[0].logprobs == (0.0,)


@given(st.text("ab ", min_size=1), st.lists(st.text("ab ", min_size=1), min_size=1, max_size=4), st.data())
def test_every_choice_is_scored_from_the_earliest_join_on(prompt: str, choices: list[str], data: st.DataObject) -> None:
    rows = []
    for choice in choices:
        whole = prompt + choice
        cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1))))
        rows.append([whole[start:end] for start, end in pairwise([0, *cuts, len(whole)])])
    borders = [[0, *accumulate(map(len, row))] for row in rows]
    earliest = min(max(offset for offset in offsets if offset <= len(prompt)) for offsets in borders)
    scored = scored_choices(choices, [answer(*row) for row in rows], 0)
    for offsets, scores in zip(borders, scored, strict=True):
        first = scores.tokens[0]
        assert offsets[first] <= earliest < offsets[first + 1]
        assert scores.tokens == tuple(range(first, len(offsets) - 1))
