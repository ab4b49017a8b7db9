"""Masks and decisions, with grammars of a few words."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence as Ordered
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_plug import LogprobOptions, Request, SamplingParams, TokenDecision, Vocabulary
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.sampling import mask_bias
from sglang_plug_backends.grammars.token_mask import word_and_bit
from sglang_plug_backends.structured_outputs.batch_grammars import (
    NOTHING_ALLOWED,
    NOTHING_MORE,
    TOO_SLOW,
    TimeLimits,
)
from sglang_plug_backends.structured_outputs.forced_tokens import ForcedTokenizer
from sglang_plug_backends.structured_outputs.rejection import MAX_SAMPLED
from tests.core.engine.sampling.sampling_cases import sample

from .grammars_of_words import (
    EOS,
    VOCABULARY,
    Words,
    allowed_tokens,
    extension,
    follow,
    opened,
    sequence,
    start,
    state,
)


class Broken(Words):
    def fill(self, mask: Tensor, row: int) -> None:
        raise KeyError("x")

    def accept(self, token: int) -> bool:
        raise KeyError("y")


def test_nothing_is_done_without_grammars() -> None:
    structured = extension()
    assert start(structured, [sequence(None)]) is None
    assert follow(structured, [sequence(None)], [5]) == {}


def test_masks_hold_content_and_stop_tokens_where_the_output_may_end() -> None:
    structured = extension()
    begun = Words((31, 40), (31, 63))
    assert begun.accept(31)
    optional = Words((3,), ())
    rows = [sequence(Words((31, 40), (32,))), sequence(None), sequence(begun), sequence(optional)]
    assert allowed_tokens(structured, rows) == [{31, 32}, {40, 63}, {3, EOS}]


def test_the_minimum_forbids_stop_tokens_unless_nothing_else_may_come() -> None:
    structured = extension()
    early = {"min_new_tokens": 3}
    rows = [
        sequence(Words((3,), ()), **early),
        sequence(Words((EOS,), (4,)), **early),
        sequence(Words((EOS,)), **early),
    ]
    rows.append(sequence(Words(()), **early))
    assert allowed_tokens(structured, rows) == [{3}, {4}, {EOS}, {EOS}]


def test_an_empty_mask_and_a_broken_grammar_are_errors_of_their_rows_alone() -> None:
    structured = extension()
    rows = [sequence(Words()), sequence(Broken()), sequence(Words((5,)))]
    nothing, broken, fine = allowed_tokens(structured, rows)
    assert (nothing, fine) == (NOTHING_ALLOWED, {5})
    assert "KeyError" in str(broken)
    logits = torch.arange(VOCABULARY, dtype=torch.float32).repeat(3, 1)
    filling = start(structured, rows)
    assert filling is not None
    assert sample(logits, rows, filling.result())[0] == [-1, -1, 5]


def test_a_constrained_row_leaves_the_others_and_the_reported_probabilities_alone() -> None:
    structured = extension()
    request = Request(id="a", tokens=(1,), params=SamplingParams(temperature=0.0), logprobs=LogprobOptions())
    rows = [Sequence.of(request, 10) for _ in range(2)]
    rows[1] = dataclasses.replace(sequence(Words((7,))), request=request)
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(1))
    filling = start(structured, rows)
    assert filling is not None
    tokens, logprobs = sample(logits.clone(), rows, filling.result())
    assert tokens == [int(logits[0].argmax()), 7]
    assert logprobs[1] is not None
    assert logprobs[1].logprob == pytest.approx(float(logits[1].log_softmax(-1)[7]))


@given(st.sets(st.integers(0, VOCABULARY - 1)), st.integers(1, 100))
def test_masks_are_unpacked_to_any_width(tokens: set[int], width: int) -> None:
    mask = torch.zeros(1, 3, dtype=torch.int32)
    for token in tokens:
        word, bit = word_and_bit(token)
        mask[0, word] |= bit
    assert set((mask_bias(mask, width)[0] == 0).nonzero()[:, 0].tolist()) == {
        token for token in tokens if token < width
    }


def test_what_a_token_leads_to() -> None:
    structured = extension()
    going, over, stopped, wrong, broken = Words((3, 4)), Words((3,)), Words((), (EOS, 3)), Words((3,)), Broken()
    rows = [sequence(grammar) for grammar in (going, over, stopped, wrong, broken)] + [
        sequence(None),
        sequence(Words((3,))),
    ]
    decisions = follow(structured, rows, [3, 3, EOS, 9, 3, 3, -1])
    assert sorted(decisions) == [0, 1, 2, 3, 4]
    assert (decisions[0].finish, decisions[0].error) == (None, None)
    assert decisions[1].finish is not None and (decisions[1].finish.reason, decisions[1].finish.matched) == (
        "stop",
        None,
    )
    assert decisions[2].finish is not None and decisions[2].finish.matched == EOS
    assert stopped.so_far == () and going.so_far == (3,)
    assert decisions[3].rejected and decisions[3].finish is None and decisions[3].error is None
    assert "KeyError" in str(decisions[4].error) and "test_batch_grammars.Broken" in str(decisions[4].error)
    assert decisions[4].error is not None and decisions[4].error.status == 500


def test_a_stop_token_is_content_where_the_output_may_not_end() -> None:
    grammar = Words((EOS, 5))
    (result,) = follow(extension(), [sequence(grammar)], [EOS]).values()
    assert result.finish is None and grammar.so_far == (EOS,)


def test_a_token_beyond_the_limit_is_not_accepted() -> None:
    grammar = Words((5,))
    (result,) = follow(extension(), [sequence(grammar, max_new_tokens=0)], [5]).values()
    assert result.finish is None and grammar.so_far == ()


def test_a_grammar_that_does_not_return_is_detached() -> None:
    """More grammars block than there are threads; the sequences behind them are served nevertheless."""
    structured = extension(timeout=0.2)
    gate = threading.Event()
    rows = [sequence(Words((5,))) for _ in range(24)]
    for row in rows[::2]:
        grammar = state(row).grammar
        assert isinstance(grammar, Words)
        grammar.gate = gate
    try:
        assert allowed_tokens(structured, rows) == [TOO_SLOW, {5}] * 12
        decisions = follow(structured, rows, [5] * 24)
        emitted_len = [
            None if (error := decisions[row].error) is None else (str(error), error.status) for row in range(24)
        ]
        assert emitted_len == [(TOO_SLOW, 400), None] * 12
    finally:
        gate.set()


class Noting(Words):
    """A grammar that records the threads that call it."""

    def __init__(self, *words: Ordered[int], pause: float = 0.0) -> None:
        super().__init__(*words)
        self.fillers, self.acceptors = list[threading.Thread](), list[threading.Thread]()
        self.pause = pause

    def fill(self, mask: Tensor, row: int) -> None:
        self.fillers.append(threading.current_thread())
        super().fill(mask, row)
        until = time.thread_time() + self.pause
        while time.thread_time() < until:
            pass

    def accept(self, token: int) -> bool:
        self.acceptors.append(threading.current_thread())
        return super().accept(token)


def test_grammars_that_are_quick_are_asked_without_threads_once_they_have_shown_it() -> None:
    quick = 0.05  # a first call in a new process may be slow
    limits = TimeLimits(quick=quick, quick_by_clock=10.0)
    structured, here = extension(limits=limits), threading.current_thread()
    grammar = Noting((5, 6, 7, 8))
    row = sequence(grammar)
    for token in (5, 6, 7):
        assert allowed_tokens(structured, [row]) == [{token}]
        follow(structured, [row], [token])
        row.tokens.append(token)
        grammar.pause = 2 * quick if token == 6 else 0.0  # after one slow call, the grammar stays in threads
    assert [thread is here for thread in grammar.fillers] == [False, True, True]
    assert [thread is here for thread in grammar.acceptors] == [True, True, False]


def test_quick_masks_are_filled_while_an_asynchronous_device_computes() -> None:
    limits = TimeLimits(quick=10.0, quick_by_clock=10.0)  # a first call in a new process may be slow
    structured, grammar = extension(limits=limits), Noting((5, 6))
    row = sequence(grammar)
    assert allowed_tokens(structured, [row]) == [{5}]
    waiting = start(structured, [row], asynchronous=True)
    assert len(grammar.fillers) == 1 and waiting is not None
    waiting.result()
    assert len(grammar.fillers) == 2
    at_once = start(structured, [row])
    assert len(grammar.fillers) == 3 and at_once is not None
    at_once.result()
    assert len(grammar.fillers) == 3


def test_an_output_has_a_budget() -> None:
    class Slow(Words):
        def fill(self, mask: Tensor, row: int) -> None:
            super().fill(mask, row)
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass

    structured = extension(limits=TimeLimits(budget=0.05, budget_per_token=0.0))
    row = sequence(Slow((5,)))
    masks = [allowed_tokens(structured, [row])[0] for _ in range(4)]
    assert masks[0] == {5} and masks[-1] == TOO_SLOW


class Spoken(Words):
    """A grammar whose tokens are bytes, and which can force text."""

    def forced(self) -> bytes:
        octets, words = b"", [word for word in self.words if word[: len(self.so_far)] == self.so_far]
        at = len(self.so_far)
        while len({word[at : at + 1] for word in words}) == 1 and words[0][at : at + 1]:
            octets += bytes(words[0][at : at + 1])
            at += 1
        return octets


PIECES = [bytes([token]) for token in range(256)]
LETTERS = Vocabulary(PIECES, (EOS,), encode=lambda text: list(text.encode()))


def spoken(*words: str, logprobs: bool = False, **params: Any) -> Sequence:
    seq = sequence(Spoken(*(tuple(word.encode()) for word in words)), **params)
    if logprobs:
        seq.request = dataclasses.replace(seq.request, logprobs=LogprobOptions())
    state(seq).forced_tokenizer = ForcedTokenizer(LETTERS)
    return seq


def letters(tokens: Ordered[int]) -> str:
    return bytes(tokens).decode()


def test_what_must_follow_is_taken_but_for_what_may_be_joined_with_the_rest() -> None:
    structured = extension()
    rows = [spoken("1, 2, 3", "1, 2, 4"), spoken("1, 2, 3", "4"), spoken("12", "13"), sequence(Words((49, 50)))]
    decisions = follow(structured, rows, [49] * 4)
    assert [letters(decisions[row].forced) for row in range(4)] == [", 2,", ", 2, 3", "", ""]
    assert [decisions[row].finish is not None for row in range(4)] == [False, True, False, False]
    for row, result in decisions.items():
        rows[row].tokens += [49, *result.forced]
    assert allowed_tokens(structured, rows[:1]) == [{ord(" ")}], "the grammar stands behind what was taken"


def test_the_last_token_is_sampled_where_log_probabilities_are_wanted() -> None:
    row = spoken("1, 2, 3", logprobs=True)
    (result,) = follow(extension(), [row], [49]).values()
    assert (letters(result.forced), result.finish) == (", 2, ", None)


@pytest.mark.parametrize(("room", "forced"), [(0, ""), (1, ""), (2, ","), (4, ", 2"), (7, ", 2, 3"), (9, ", 2, 3")])
def test_no_more_is_taken_than_there_is_room_for(room: int, forced: str) -> None:
    row = spoken("1, 2, 3", max_new_tokens=room)
    (result,) = follow(extension(), [row], [49]).values()
    assert letters(result.forced) == forced
    assert (result.finish is not None) == (room >= 7)


@pytest.mark.parametrize(("room", "forced"), [(0, ""), (1, ""), (2, "1"), (6, "1, 2,"), (7, "1, 2, "), (9, "1, 2, ")])
def test_outputs_begin_with_what_is_forced(room: int, forced: str) -> None:
    """The last possible token is not forced, because a token must be sampled."""
    decisions = opened([spoken("1, 2, 3", max_new_tokens=room), spoken("1", "2", max_new_tokens=room)])
    assert [letters(result.forced) for result in decisions] == [forced, ""]
    assert all(result.error is result.finish is None for result in decisions)


def test_an_output_that_its_grammar_ends_at_once_has_no_tokens() -> None:
    class Failing(Words):
        @property
        def ended(self) -> bool:
            raise KeyError("x")

    for jump in (True, False):
        ended, failed, going = opened([sequence(Words(())), sequence(Failing((5,))), sequence(Words((5,)))], jump=jump)
        assert ended.finish is not None and ended.finish.reason == "stop" and ended.forced == ()
        assert failed.error is not None and "KeyError" in str(failed.error)
        assert going == NOTHING_MORE


def test_jumping_can_be_switched_off() -> None:
    structured = extension(jump=False)
    row = spoken("1, 2, 3")
    assert opened([row], jump=False)[0].forced == ()
    assert follow(structured, [row], [49])[0].forced == ()


def test_what_a_grammar_forces_and_then_rejects_is_left_to_the_model() -> None:
    class Confused(Spoken):
        def forced(self) -> bytes:
            return b", 9, 9, 9"

    row = spoken("1, 2, 3")
    state(row).grammar = Confused(tuple(b"1, 2, 3"))
    structured = extension()
    assert opened([row])[0].forced == ()
    assert follow(structured, [row], [49])[0] == NOTHING_MORE
    row.tokens.append(49)
    assert allowed_tokens(structured, [row]) == [{ord(",")}]


class Wide(Words):
    """A grammar whose mask allows every token."""

    def fill(self, mask: Tensor, row: int) -> None:
        mask[row] = -1


def test_a_rejected_token_is_not_allowed_again_at_its_position() -> None:
    structured, row = extension(), sequence(Wide((3, 4)))
    everything = set(range(VOCABULARY))
    assert allowed_tokens(structured, [row]) == [everything]
    for token in (7, 8):
        assert follow(structured, [row], [token])[0] == TokenDecision(rejected=True)
    assert allowed_tokens(structured, [row]) == [everything - {7, 8}]
    assert follow(structured, [row], [3])[0] == NOTHING_MORE
    row.tokens.append(3)
    assert allowed_tokens(structured, [row]) == [everything]


def test_after_some_rejections_only_what_the_grammar_accepts_is_left() -> None:
    structured, row = extension(), sequence(Wide((3, 4), (40,)))
    for token in range(10, 10 + MAX_SAMPLED):
        assert follow(structured, [row], [token])[0].rejected
    assert allowed_tokens(structured, [row]) == [{3, 40}]
    assert follow(structured, [row], [3])[0] == NOTHING_MORE


@pytest.mark.parametrize(("word", "reason"), [((), "stop"), ((3,), "error")])
def test_an_output_ends_where_its_grammar_accepts_nothing(word: tuple[int, ...], reason: str) -> None:
    class Never(Wide):
        def accept(self, token: int) -> bool:
            return False

    structured, row = extension(), sequence(Never(word), stop_token_ids=())
    decisions = [follow(structured, [row], [token])[0] for token in range(10, 10 + MAX_SAMPLED)]
    assert [decision.rejected for decision in decisions[:-1]] == [True] * (MAX_SAMPLED - 1)
    finish, error = decisions[-1].finish, decisions[-1].error
    if reason == "stop":
        assert decisions[-1].rejected and finish is not None and finish.reason == "stop"
    else:
        assert finish is None and error is not None and error.status == 500 and "Never" in str(error)
