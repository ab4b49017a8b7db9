"""Tokens that a step takes from the previous one, which is still on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug import Request, SamplingParams
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence


def decoding(id: str) -> Sequence:
    sequence = Sequence.of(Request(id=id, tokens=(1, 2), params=SamplingParams(max_new_tokens=9)), 100)
    sequence.computed = 1
    return sequence


def ahead(sequence: Sequence) -> ScheduledChunk:
    """Return a chunk with the token after the one that the step on the device computes."""
    return ScheduledChunk(sequence, 1, ahead=1)


def rows(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers)


def test_each_chunk_takes_the_token_of_its_sequence() -> None:
    first, second, third = map(decoding, "abc")
    step = LaunchedStep([first, second, third], torch.tensor([11, 12, -1]), list)
    whole = step.tokens_for([ahead(first), ahead(second), ahead(third)], rows)
    assert whole is not None and whole.chunk_indices == [0, 1, 2]
    assert whole.tokens.tolist() == [11, 12, 0], "one without a token is given some valid one"
    some = step.tokens_for([ahead(third), ScheduledChunk(decoding("new"), 1), ahead(first)], rows)
    assert some is not None and some.chunk_indices == [0, 2] and some.tokens.tolist() == [0, 11]


def test_nothing_is_taken_for_tokens_that_the_host_knows() -> None:
    sequence = decoding("a")
    step = LaunchedStep([sequence], torch.tensor([11]), list)
    assert step.tokens_for([ScheduledChunk(sequence, 1)], rows) is None
    assert LaunchedStep([], None, list).tokens_for([ahead(sequence)], rows) is None
