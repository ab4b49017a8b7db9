"""The statistics of a step, as observers receive them."""

from __future__ import annotations

import time

from sglang_plug.contracts.serving.observer import MetricInfo, MetricTotal, StepStats

from .scheduler import Scheduler


def step_stats(
    scheduler: Scheduler,
    *,
    held: int,
    seconds: float,
    totals: tuple[MetricTotal, ...] = (),
    with_coefficients: bool = False,
    infos: tuple[MetricInfo, ...] = (),
) -> StepStats:
    """Return the statistics of the step that ``scheduler`` has just committed.

    Args:
        scheduler: its counters are those of the step.
        held: number of requests that step extensions hold.
        seconds: duration of the step; 0 if nothing was computed.
        totals: those of step extensions.
        with_coefficients: report what was learned about the duration of steps.
        infos: those of step extensions.
    """
    counters, pool, allocator = scheduler.counters, scheduler.pool, scheduler.allocator
    relieved, allocator.relieved = allocator.relieved, 0
    step_budget = scheduler.extensions.step_budget
    free, cached, capacity = pool.free, scheduler.cache.size, pool.capacity
    return StepStats(
        time=time.time(),
        seconds=seconds,
        prefill_sequences=counters.prefill_sequences,
        prefill_tokens=counters.prefill_tokens,
        cached_tokens=counters.cached_tokens,
        decode_sequences=counters.decode_sequences,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting) + held,
        used_slots=capacity - free - cached,
        cached_slots=cached,
        free_slots=free,
        capacity=capacity,
        retracted=counters.retracted,
        forced_tokens=counters.forced_tokens,
        drafted_tokens=counters.drafted_tokens,
        accepted_tokens=counters.accepted_tokens,
        queue_seconds=tuple(counters.queue_seconds),
        relieved_tokens=relieved,
        target_seconds=step_budget.target_seconds,
        totals=totals,
        step_coefficients=step_budget.step_coefficients() if with_coefficients else None,
        infos=infos,
    )
