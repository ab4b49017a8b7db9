"""The steps of memory profiling are as large as the largest steps of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any

import pytest

from sglang_plug import AdmissionPhase, ProfilingPhase, PromptLayout, Request, SequenceView, StepExtension
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.startup.profiling import LargestSteps


def steps(**changed: Any) -> LargestSteps:
    sizes = {"tokens": 20, "longest": 12, "sequences": 8, "task": "generate", "vocabulary": 7, "page_size": 4}
    return LargestSteps(**{**sizes, **changed})


class Runner:
    """A runner that records the steps that it is asked to run."""

    def __init__(self) -> None:
        self.steps: list[list[ScheduledChunk]] = []

    def run(self, chunks: Ordered[ScheduledChunk]) -> list[StepResult]:
        self.steps.append(list(chunks))
        return []


@pytest.mark.parametrize(
    ("changed", "lengths"),
    [
        ({}, [[10, 10], [3, 3, 3, 3, 2, 2, 2, 2]]),
        ({"longest": 100}, [[20], [3, 3, 3, 3, 2, 2, 2, 2]]),
        ({"sequences": 1}, [[12]]),  # more than one prompt's tokens are never computed at once
        ({"sequences": 2}, [[10, 10]]),
        ({"tokens": 3}, [[3], [1, 1, 1]]),
    ],
)
def test_prompt_lengths(changed: dict[str, Any], lengths: list[list[int]]) -> None:
    assert steps(**changed).lengths() == lengths


@pytest.mark.parametrize("page_size", [1, 4])
def test_every_token_has_a_slot_of_its_own(page_size: int) -> None:
    largest_steps, runner = steps(page_size=page_size), Runner()
    largest_steps.run(runner)  # type: ignore[arg-type]
    for chunks in runner.steps:
        slots = [slot for chunk in chunks for slot in chunk.sequence.slots]
        assert len(set(slots)) == len(slots) == sum(chunk.count for chunk in chunks) == 20
        assert min(slots) >= page_size and max(slots) < largest_steps.slots + page_size
        assert all(chunk.complete and set(chunk.sequence.tokens) <= set(range(7)) for chunk in chunks)
    assert largest_steps.slots == {1: 20, 4: 32}[page_size]


def test_sampling_asks_for_much() -> None:
    runner = Runner()
    steps().run(runner)  # type: ignore[arg-type]
    few, many = (chunks[0].sequence.request for chunks in runner.steps)
    assert few.logprobs is not None and few.logprobs.start == 0
    assert many.logprobs is not None and many.logprobs.start == -1
    for request in (few, many):
        assert not request.params.greedy and request.params.frequency_penalty and request.params.top_p < 1


def test_prompts_without_outputs() -> None:
    runner = Runner()
    steps(task="embed").run(runner)  # type: ignore[arg-type]
    assert all(chunk.sequence.request.task == "embed" for chunks in runner.steps for chunk in chunks)
    assert all(chunk.sequence.request.logprobs is None for chunks in runner.steps for chunk in chunks)


class Spans(StepExtension, AdmissionPhase, ProfilingPhase):
    """A step extension whose prompts consist of spans of 8 tokens; no step computes a part of a span if they are
    ``whole``."""

    def __init__(self, whole: bool) -> None:
        self.whole, self.open = whole, 0

    def largest_request(self, tokens: int) -> Request | None:
        return Request(id="spans", tokens=(0,) * min(tokens, 17))

    def layout(self, sequence: SequenceView) -> PromptLayout:
        self.open += 1
        return Layout(list(sequence.tokens), self.whole)

    def finished(self, sequence: SequenceView) -> None:
        self.open -= 1


@dataclass
class Layout:
    cache_tokens: list[int]
    whole: bool

    def positions(self, start: int, end: int) -> Iterable[int]:
        return range(start, end)

    def chunk_end(self, end: int) -> int:
        return -(-end // 8) * 8 if self.whole else end

    def reusable(self, length: int) -> int:
        return length


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(("whole", "counts"), [(False, [10, 10]), (True, [16, 10])])
def test_the_largest_request_of_an_extension_has_a_step_of_its_own(
    whole: bool, counts: list[int], page_size: int
) -> None:
    extensions = extension_points({"spans": Spans(whole)})
    largest_steps, runner = (
        steps(longest=18, tokens=20, page_size=page_size).with_extensions(extensions.start, extensions.requests),
        Runner(),
    )
    largest_steps.run(runner)  # type: ignore[arg-type]
    assert len(runner.steps) == 3
    chunks = runner.steps[-1]
    assert [chunk.count for chunk in chunks] == counts
    first = chunks[0].sequence
    assert first.request.id == "spans" and len(first.tokens) == 17 and first.layout is not None
    slots = [slot for chunk in chunks for slot in chunk.sequence.slots]
    assert len(set(slots)) == len(slots) == sum(counts) and max(slots) < largest_steps.slots + page_size


def test_a_short_request_is_lengthened_to_the_largest_chunk() -> None:
    extensions = extension_points({"spans": Spans(False)})
    largest_steps = steps(longest=100, tokens=30).with_extensions(extensions.start, extensions.requests)
    assert [len(sequence.tokens) for sequence in largest_steps.largest] == [30]
