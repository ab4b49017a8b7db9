"""Scheduling of prompts that must not be chunked, for pooling heads that need every hidden state."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from sglang_plug import Output, Request, SamplingParams
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.schedule.policies import FirstCome

CAPACITY = 64

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)
aborted = st.sets(st.integers(0, 11), max_size=4)


def make(chunk: int, max_running: int, page_size: int) -> Scheduler:
    clock = itertools.count()
    cache = NoCache(page_size, LeastRecentlyUsed(), lambda: float(next(clock)))
    pool = SlotPool(CAPACITY, page_size)
    return build_scheduler(
        pool, cache, FirstCome(), chunk_size=chunk, max_running=max_running, never_chunks_prompts=True
    )


def submit(scheduler: Scheduler, index: int, length: int) -> None:
    request = Request(
        id=str(index), tokens=(5,) * length, params=SamplingParams(max_new_tokens=0), task="embed", arrived=float(index)
    )
    scheduler.add(Sequence.of(request, CAPACITY))


def step(scheduler: Scheduler) -> tuple[list[ScheduledChunk], list[Output]]:
    chunks = scheduler.plan()
    used = [slot for chunk in chunks for slot in chunk.sequence.slots[: chunk.count]]
    assert max(Counter(used).values()) == 1, "two prompts in one slot"
    results = [StepResult(values=(float(chunk.sequence.request.id),)) for chunk in chunks]
    outputs = StepCommitter(scheduler).commit(chunks, results)
    scheduler.check()
    return chunks, outputs


@given(lengths, st.integers(1, 32), st.integers(1, 6), st.sampled_from([1, 4]), aborted)
@example([40, 40], 1, 6, 1, set())
def test_every_prompt_is_computed_at_once_and_no_slot_is_lost(
    lengths: list[int], chunk_size: int, max_running: int, page_size: int, aborted: set[int]
) -> None:
    scheduler = make(chunk_size, max_running, page_size)
    for index, length in enumerate(lengths):
        submit(scheduler, index, length)
    for index in aborted:
        scheduler.abort(str(index))
    remaining = [index for index in range(len(lengths)) if index not in aborted]
    order: list[int] = []
    while scheduler.busy:
        chunks, outputs = step(scheduler)
        assert chunks, "a busy scheduler planned nothing"
        counts = [chunk.count for chunk in chunks]
        assert counts == [len(chunk.sequence.request.tokens) for chunk in chunks]
        assert all(chunk.complete for chunk in chunks)
        assert sum(counts) <= chunk_size or len(counts) == 1
        assert len(counts) <= max_running
        for chunk, output in zip(chunks, outputs, strict=True):
            assert output.finish is not None and output.finish.reason == "stop"
            assert (output.id, output.values) == (chunk.sequence.request.id, (float(output.id),))
            assert output.tokens == () and output.cached_tokens == 0
            order.append(int(output.id))
        assert scheduler.running == []
    assert order == remaining
    assert scheduler.accounts()["free"] == scheduler.accounts()["capacity"]


def test_a_prompt_longer_than_a_step_waits_for_one_of_its_own() -> None:
    scheduler = make(16, 8, 1)
    for index, length in enumerate([6, 6, 30, 4]):
        submit(scheduler, index, length)
    steps = []
    while scheduler.busy:
        chunks, _ = step(scheduler)
        steps.append([chunk.count for chunk in chunks])
    assert steps == [[6, 6], [30], [4]]
