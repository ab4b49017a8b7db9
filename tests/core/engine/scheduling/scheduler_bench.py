"""A scheduler with a function in place of the model: the next token depends on all tokens before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sglang_plug import Output, Request, SamplingParams, StatePool
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.recurrent_state.state_rows import HeldState, StateRows, held_state
from sglang_plug_backends.recurrent_state.state_steps import StateSteps
from sglang_plug_backends.schedule.policies import FirstCome

STOP, VOCABULARY = 7, 50


def next_token(tokens: Iterable[int]) -> int:
    """Return the next token of a deterministic model, which depends on all earlier tokens."""
    return hash(tuple(tokens)) % VOCABULARY


def sampled(tokens: tuple[int, ...], drafts: tuple[int, ...] = ()) -> StepResult:
    """Return the model's token after ``tokens``, and the tokens after each accepted draft."""
    first = next_token(tokens)
    accepted, known = [], (*tokens, first)
    for draft in drafts:
        if draft != known[-1]:
            break
        accepted.append((next_token(known), None))
        known = (*known, accepted[-1][0])
    return StepResult(first, accepted_tokens=tuple(accepted))


class Clock:
    """A clock whose time a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class SimulatedStates:
    """A simulated state pool whose rows hold the tokens that their states include, so that wrong or lost states are
    noticed."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, ...]] = {StatePool.ZEROS: ()}

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        read = [self.rows[row] for row in sources.tolist()]
        self.rows.update(zip(targets.tolist(), read, strict=True))

    def compute(self, held: HeldState, tokens: tuple[int, ...], start: int, end: int) -> None:
        assert held.row >= StatePool.RESERVED and self.rows[held.row] == tokens[:start], (
            "not the state of what came before"
        )
        self.rows[held.row] = tokens[:end]


class Device:
    """A simulated device that records the tokens written to each slot, so that wrong or lost slots are noticed."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[int, ...]] = {}
        self.states = SimulatedStates()
        self.steps = StateSteps(self.states)  # type: ignore[arg-type]
        self.computed = 0

    def run(self, chunks: list[ScheduledChunk]) -> list[StepResult]:
        results = []
        self.steps.begin([held for chunk in chunks if (held := held_state(chunk.sequence)) is not None])
        for chunk in chunks:
            sequence = chunk.sequence
            tokens = (*sequence.tokens, *chunk.drafts)
            end = sequence.computed + chunk.width
            assert len(sequence.slots) >= end and chunk.count > 0
            assert not chunk.drafts or chunk.end == len(sequence.tokens)
            for position in range(sequence.computed, end):
                self.slots[sequence.slots[position]] = tokens[: position + 1]
            for position in range(end):
                assert self.slots[sequence.slots[position]] == tokens[: position + 1]
            if (held := held_state(sequence)) is not None:
                self.states.compute(held, tokens, sequence.computed, chunk.end)
            self.computed += chunk.count
            results.append(sampled(tuple(sequence.tokens), chunk.drafts) if chunk.complete else StepResult())
        self.steps.end(chunks)
        return results


def with_states(options: dict[str, Any], page_size: int) -> dict[str, Any]:
    """Return the options of a scheduler; ``states``, if given, is the number of recurrent states of an extension."""
    count = options.pop("states", None)
    if count is None:
        return options
    rows = StateRows(StatePool.RESERVED + count, page_size, grain=4, min_tokens=3)
    points = options.get("extensions") or ExtensionPoints()
    states = (*points.cache.states, rows)
    points = replace(points, cache=replace(points.cache, states=states, reset=(rows.reset,), check=(rows.check,)))
    return {**options, "extensions": points}


def make(
    capacity: int = 200, page_size: int = 1, cache: type = RadixCache, policy: Any = FirstCome, **options: Any
) -> Scheduler:
    pool = SlotPool(capacity, page_size)
    clock = itertools.count()
    options = with_states({"chunk_size": 16, "max_running": 8, **options}, page_size)
    return build_scheduler(pool, cache(page_size, LeastRecentlyUsed(), lambda: float(next(clock))), policy(), **options)


def submit(scheduler: Scheduler, id: str, tokens: list[int], **options: Any) -> None:
    params = SamplingParams(**{"max_new_tokens": 5, "stop_token_ids": (STOP,), **options.pop("params", {})})
    request = Request(id=id, tokens=tuple(tokens), params=params, **options)
    scheduler.add(Sequence.of(request, scheduler.pool.capacity))


def finish(scheduler: Scheduler, device: Device, limit: int = 10_000) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(limit):
        if not scheduler.busy:
            scheduler.check()
            scheduler.cache.check()
            return tokens
        for output in step(scheduler, device):
            tokens.setdefault(output.id, []).extend(output.tokens)
    raise AssertionError("no end")


def step(scheduler: Scheduler, device: Device) -> list[Output]:
    chunks = scheduler.plan()
    assert chunks or not scheduler.busy, "a busy scheduler planned nothing"
    assert sum(chunk.width for chunk in chunks) <= max(scheduler.chunk_size, len(scheduler.running))
    outputs = StepCommitter(scheduler).commit(chunks, device.run(chunks))
    scheduler.check()
    return outputs


def expected(tokens: list[int], limit: int = 5) -> list[int]:
    out: list[int] = []
    while len(out) < limit and STOP not in out:
        out.append(next_token(tokens + out))
    return out


def room(scheduler: Scheduler, tokens: list[int]) -> int:
    """Return the number of new tokens that a prompt can get in the scheduler's small pool, at most 5."""
    return min(5, scheduler.pool.capacity - len(tokens))
