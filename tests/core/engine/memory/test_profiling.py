"""The steps that are tried hold what the largest ones of the scheduler hold."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import pytest
import torch

from sglang_plug import Media, Model, SupportsImages
from sglang_plug.engine.memory.profiling import LargestSteps
from sglang_plug.engine.scheduling.scheduled_chunk import ScheduledChunk, StepResult


def steps(**changed: Any) -> LargestSteps:
    given = {"tokens": 20, "longest": 12, "sequences": 8, "task": "generate", "vocabulary": 7, "page_size": 4}
    return LargestSteps(**{**given, **changed})


class Runner:
    """Notes what it is to run."""

    def __init__(self, model: Any = None) -> None:
        self.steps: list[list[ScheduledChunk]] = []
        self.model = model

    def run(self, shares: Ordered[ScheduledChunk]) -> list[StepResult]:
        self.steps.append(list(shares))
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
    wanted, runner = steps(page_size=page_size), Runner()
    wanted.run(runner)  # type: ignore[arg-type]
    for shares in runner.steps:
        slots = [slot for share in shares for slot in share.sequence.slots]
        assert len(set(slots)) == len(slots) == sum(share.count for share in shares) == 20
        assert min(slots) >= page_size and max(slots) < wanted.slots + page_size
        assert all(share.complete and set(share.sequence.tokens) <= set(range(7)) for share in shares)
    assert wanted.slots == {1: 20, 4: 32}[page_size]


def test_sampling_asks_for_much() -> None:
    runner = Runner()
    steps().run(runner)  # type: ignore[arg-type]
    few, many = (shares[0].sequence.request for shares in runner.steps)
    assert few.logprobs is not None and few.logprobs.start == 0
    assert many.logprobs is not None and many.logprobs.start == -1
    for request in (few, many):
        assert not request.params.greedy and request.params.frequency_penalty and request.params.top_p < 1


def test_prompts_without_outputs() -> None:
    runner = Runner()
    steps(task="embed").run(runner)  # type: ignore[arg-type]
    assert all(share.sequence.request.task == "embed" for shares in runner.steps for share in shares)
    assert all(share.sequence.request.logprobs is None for shares in runner.steps for share in shares)


class Seer(Model, SupportsImages):
    """Looks at anything."""

    def __init__(self, whole: bool) -> None:
        torch.nn.Module.__init__(self)
        self.bidirectional_images = whole  # type: ignore[misc]

    def encode_images(self, media: Ordered[Media]) -> list[torch.Tensor]:
        return [torch.zeros(one.count, 4) for one in media]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(("whole", "counts"), [(False, [10, 10]), (True, [16, 10])])
def test_images_are_looked_at_in_a_step_of_their_own(whole: bool, counts: list[int], page_size: int) -> None:
    media = tuple(Media.of(start, 8, {}) for start in (0, 8))
    wanted, runner = steps(media=media, longest=18, tokens=20, page_size=page_size), Runner(Seer(whole))
    wanted.run(runner)  # type: ignore[arg-type]
    assert len(runner.steps) == 3
    shares = runner.steps[-1]
    assert [share.count for share in shares] == counts
    first = shares[0].sequence
    assert first.request.media == media and len(first.tokens) == 17 and first.view is not None
    slots = [slot for share in shares for slot in share.sequence.slots]
    assert len(set(slots)) == len(slots) == sum(counts) and max(slots) < wanted.slots + page_size
