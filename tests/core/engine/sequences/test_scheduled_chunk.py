"""The chunks of a step, and the outputs that their results produce."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import Finish, LogprobOptions, Request, SamplingParams, TokenLogprob
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepCounters, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.engine.sequences.step_outputs import append

STOP = 7


def make(prompt: int = 3, new_tokens: int = 10, *, constrained: bool = False, **fields: Any) -> Sequence:
    params = SamplingParams(max_new_tokens=new_tokens, stop_token_ids=(STOP,))
    request = Request(id="a", tokens=tuple(range(prompt)), params=params, **fields)
    return Sequence.of(request, 100, constrained=constrained)


def whole(sequence: Sequence, drafts: tuple[int, ...] = ()) -> ScheduledChunk:
    """Return a chunk with all remaining tokens of a sequence, and count them as computed, as the scheduler does."""
    chunk = ScheduledChunk(sequence, len(sequence.tokens) - sequence.computed, drafts=drafts)
    sequence.computed = len(sequence.tokens)
    return chunk


def test_a_chunk_begins_after_what_is_computed_and_what_is_on_the_device() -> None:
    sequence = make(10)
    sequence.computed = 2
    chunk = ScheduledChunk(sequence, 3, ahead=4, drafts=(1, 1))
    assert (chunk.start, chunk.end, chunk.draft_end, chunk.width) == (6, 9, 11, 5)
    assert list(chunk.positions) == [6, 7, 8, 9, 10]
    assert not chunk.complete and chunk.prefilling and not chunk.pending_on_device
    assert (chunk.committed.start, chunk.committed.count) == (2, 3)


def test_a_token_that_only_the_device_knows() -> None:
    sequence = make(3)
    chunk = ScheduledChunk(sequence, 1, ahead=3)
    assert chunk.pending_on_device and chunk.complete


@pytest.mark.parametrize(("new_tokens", "continues"), [(1, False), (2, True)])
def test_a_chunk_continues_unless_its_token_is_the_last(new_tokens: int, continues: bool) -> None:
    sequence = make(3, new_tokens)
    assert ScheduledChunk(sequence, 3).continues is continues
    assert ScheduledChunk(sequence, 2).continues


@pytest.mark.parametrize(
    ("fields", "count", "drafts", "predictable"),
    [
        ({}, 3, (), True),
        ({}, 3, (1,), False),
        ({"task": "embed"}, 3, (), False),
        ({"logprobs": LogprobOptions()}, 3, (), True),
        ({"logprobs": LogprobOptions()}, 2, (), False),
        ({"logprobs": LogprobOptions(), "constrained": True}, 3, (), False),
        ({"constrained": True}, 3, (), True),
    ],
)
def test_which_chunks_let_the_next_step_be_planned(
    fields: dict[str, Any], count: int, drafts: tuple[int, ...], predictable: bool
) -> None:
    assert ScheduledChunk(make(**fields), count, drafts=drafts).predictable is predictable


def test_the_tokens_of_each_step_are_sent_once() -> None:
    sequence, counters = make(), StepCounters()
    outputs = [append(whole(sequence), StepResult(token), counters) for token in (11, 12, STOP)]
    assert [output.tokens for output in outputs] == [(11,), (12,), (STOP,)]
    assert [output.finish for output in outputs] == [None, None, Finish("stop", matched=STOP)]


def test_forced_tokens_follow_the_sampled_one() -> None:
    sequence, counters = make(constrained=True), StepCounters()
    output = append(whole(sequence), StepResult(11, forced=(12, 13)), counters)
    assert output.tokens == (11, 12, 13) and sequence.last_step_len == 3 and counters.forced_tokens == 2
    assert not sequence.computes_prompt
    output = append(whole(sequence), StepResult(14), counters)
    assert output.tokens == (14,) and sequence.last_step_len == 1


def test_forced_tokens_wait_for_their_log_probabilities() -> None:
    sequence, counters = make(constrained=True, logprobs=LogprobOptions()), StepCounters()
    first, second, third = (TokenLogprob(token, -1.0) for token in (11, 12, 13))
    output = append(whole(sequence), StepResult(11, first, forced=(12,)), counters)
    assert (output.tokens, output.logprobs) == ((11,), (first,))
    sequence.output.forced_logprobs.append(second)
    output = append(whole(sequence), StepResult(13, third), counters)
    assert (output.tokens, output.logprobs) == ((12, 13), (second, third))


def test_log_probabilities_of_the_prompt_are_sent_with_the_first_token() -> None:
    sequence, counters = make(logprobs=LogprobOptions(start=0)), StepCounters()
    of_prompt = [TokenLogprob(0, None), TokenLogprob(1, -1.0)]
    sequence.output.prompt_logprobs += of_prompt
    outputs = [append(whole(sequence), StepResult(9, TokenLogprob(9, -1.0)), counters) for _ in range(2)]
    assert [output.prompt_logprobs for output in outputs] == [tuple(of_prompt), ()]


def test_an_output_may_end_without_a_token() -> None:
    output = append(whole(make(constrained=True)), StepResult(finish=Finish("stop")), StepCounters())
    assert output.tokens == () and output.finish == Finish("stop")


def test_accepted_drafts_count_as_computed() -> None:
    sequence, counters = make(), StepCounters()
    chunk = whole(sequence, (11, 12, 13))
    output = append(chunk, StepResult(11, accepted_tokens=((12, None), (20, None))), counters)
    assert output.tokens == (11, 12, 20) and output.finish is None
    assert sequence.computed == 5 == len(sequence.tokens) - 1
    assert (counters.drafted_tokens, counters.accepted_tokens) == (3, 2)


@pytest.mark.parametrize(
    ("accepted", "new_tokens", "tokens", "reason"),
    [([12, STOP, 13], 10, (11, 12, STOP), "stop"), ([12, 13, 14], 3, (11, 12, 13), "length")],
)
def test_drafts_after_the_end_of_the_output_are_dropped(
    accepted: list[int], new_tokens: int, tokens: tuple[int, ...], reason: str
) -> None:
    sequence = make(new_tokens=new_tokens)
    chunk = whole(sequence, (11, *accepted[:-1]))
    result = StepResult(11, accepted_tokens=tuple((token, None) for token in accepted))
    output = append(chunk, result, StepCounters())
    assert output.tokens == tokens and output.finish is not None and output.finish.reason == reason
    assert sequence.tokens[3:] == list(tokens)


def test_prompts_and_decodes_are_counted_apart() -> None:
    decoding, counters = make(), StepCounters()
    append(whole(decoding), StepResult(11), counters)
    counters.add([ScheduledChunk(make(9), 5), ScheduledChunk(decoding, 1), ScheduledChunk(make(4), 4)])
    assert (counters.prefill_sequences, counters.prefill_tokens, counters.decode_sequences) == (2, 9, 1)
