"""A sequence while it is served: its token limit, reusable prefix, chunk ends and finish reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import LogprobOptions, Request, SamplingParams, SequenceView, StatePhase, TokenLogprob
from sglang_plug.engine.sequences.sequence import Sequence

FILLER = TokenLogprob(1, -1.0)


def make(prompt: int = 5, *, longest: int = 100, constrained: bool = False, **fields: Any) -> Sequence:
    params = SamplingParams(**{"max_new_tokens": 10, **fields.pop("params", {})})
    request = Request(id="a", tokens=tuple(range(prompt)), params=params, **fields)
    return Sequence.of(request, longest, constrained=constrained)


@pytest.mark.parametrize(
    ("new_tokens", "longest", "task", "limit"),
    [(10, 100, "generate", 15), (10, 12, "generate", 12), (10, 100, "embed", 5), (0, 100, "generate", 5)],
)
def test_it_grows_to_the_first_of_its_limits(new_tokens: int, longest: int, task: Any, limit: int) -> None:
    assert make(longest=longest, task=task, params={"max_new_tokens": new_tokens}).limit == limit


def test_a_seed_is_chosen_if_none_is_given() -> None:
    assert make(params={"seed": 3}).sampling.seed == 3
    assert make().sampling.seed != make().sampling.seed


def test_no_salt_of_a_caller_is_that_of_nobody() -> None:
    assert make().salt == "" and make(salt="x").salt not in ("", "x")


@given(
    prompt=st.integers(1, 8),
    generated=st.integers(0, 5),
    start=st.integers(-1, 10),
    known=st.integers(0, 10),
    emitted=st.integers(0, 5),
    forced=st.integers(0, 5),
)
def test_what_predicts_a_token_whose_log_probability_is_not_known_is_computed(
    prompt: int, generated: int, start: int, known: int, emitted: int, forced: int
) -> None:
    sequence = make(prompt, logprobs=LogprobOptions(start=start))
    sequence.tokens += [9] * generated
    of_prompt = min(known, max(0, prompt - start)) if start >= 0 else 0
    sequence.output.prompt_logprobs += [FILLER] * of_prompt
    sequence.output.emitted_len += min(emitted, generated)
    sequence.output.forced_logprobs += [FILLER] * min(forced, generated - min(emitted, generated))
    unknown = set(range(start + of_prompt, prompt)) if start >= 0 else set()
    unknown |= set(range(sequence.output.emitted_len + len(sequence.output.forced_logprobs), len(sequence.tokens)))
    # the token at an index is predicted by the one before it, which must not come from the cache then
    assert sequence.reusable == max(0, min(unknown, default=len(sequence.tokens)) - 1)


@pytest.mark.parametrize("generated", [0, 3])
def test_without_log_probabilities_all_but_the_last_token_may_be_reused(generated: int) -> None:
    sequence = make(5)
    sequence.tokens += [9] * generated
    assert sequence.reusable == 4 + generated


class Every(StatePhase):
    """A state phase that lets chunks end only at multiples of a number, if there is one within the chunk."""

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple

    def chunk_end(self, sequence: SequenceView, start: int, end: int) -> int:
        assert end > start, "asked about a chunk without tokens"
        shorter = end // self._multiple * self._multiple
        return shorter if shorter > start else end


@dataclass
class Spans:
    """A prompt layout in which no chunk may end within ``span``."""

    cache_tokens: list[int]
    span: range

    def positions(self, start: int, end: int) -> Iterable[int]:
        return range(start, end)

    def chunk_end(self, end: int) -> int:
        return self.span.stop if end in self.span else end

    def reusable(self, length: int) -> int:
        return length


@given(length=st.integers(1, 30), start=st.integers(0, 30), room=st.integers(-3, 40), multiple=st.integers(1, 7))
def test_a_step_computes_what_is_left_and_has_room(length: int, start: int, room: int, multiple: int) -> None:
    sequence = make(length)
    start = min(start, length)
    plain = sequence.count(start, room)
    assert plain == min(length - start, room)
    count = sequence.count(start, room, [Every(multiple)])
    assert count == plain or (0 < count < plain and (start + count) % multiple == 0)
    assert sequence.count(start, room, tokens=length + 1) == min(length + 1 - start, room)


def test_a_span_that_must_not_be_split_is_computed_although_there_is_no_room() -> None:
    sequence = make(20)
    sequence.layout = Spans(list(range(20)), range(5, 12))
    assert [sequence.count(0, room) for room in (4, 5, 6, 11, 13)] == [4, 12, 12, 12, 13]
    assert sequence.count(0, 10, [Every(4)]) == 12, "a state shortens the chunk first"


def test_keys_of_the_cache_are_those_of_the_layout_and_then_the_tokens() -> None:
    sequence = make(4)
    sequence.tokens += [8, 9]
    assert sequence.keys(1, 6) == [1, 2, 3, 8, 9]
    sequence.layout = Spans([0, -1, -2, 3], range(0))
    assert sequence.keys(1, 6) == [-1, -2, 3, 8, 9]
    assert sequence.keys(4, 6) == [8, 9] and sequence.keys(0, 2) == [0, -1]


def test_it_ends_at_a_stop_token_that_was_generated_or_at_its_limit() -> None:
    sequence = make(3, longest=5, params={"stop_token_ids": (2, 7)})
    assert sequence.tokens[-1] == 2 and sequence.finish is None, "the prompt ends with a stop token"
    sequence.tokens.append(7)
    assert sequence.finish is not None and (sequence.finish.reason, sequence.finish.matched) == ("stop", 7)
    sequence.tokens[-1:] = [4, 4]
    assert sequence.finish is not None and sequence.finish.reason == "length"


def test_an_extension_decides_where_a_constrained_output_ends() -> None:
    sequence = make(3, longest=5, constrained=True, params={"stop_token_ids": (7,)})
    sequence.tokens.append(7)
    assert sequence.finish is None
    sequence.tokens.append(7)
    assert sequence.finish is not None and sequence.finish.reason == "length"


def test_a_prompt_is_computed_until_only_what_the_last_step_added_is_left() -> None:
    sequence = make(5)
    assert sequence.computes_prompt
    sequence.computed, sequence.last_step_len = 5, 1
    sequence.tokens.append(9)
    assert not sequence.computes_prompt
    sequence.tokens += [9, 9]  # forced
    sequence.last_step_len = 3
    assert not sequence.computes_prompt
    sequence.computed = 0  # retracted
    assert sequence.computes_prompt
