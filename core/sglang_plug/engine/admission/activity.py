"""The requests and cached prefixes of an engine at this moment, for operators: counts and ids, no tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from itertools import chain, islice
from typing import Any

from sglang_plug.contracts.serving.cache import CachedSegment, PrefixCache
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.sequence import Sequence

from .open_requests import OpenRequests

MAX_REQUESTS = 100
"""Largest number of requests of each state that are listed."""
MAX_CALLERS = 50
MAX_RUNS = 250
"""Largest number of runs of the prefix cache that are listed."""


def activity(scheduler: Scheduler, requests: OpenRequests, held: Collection[Sequence]) -> dict[str, Any]:
    """Return the KV slots by owner, the callers, the requests and an outline of the prefix cache as plain data.

    Args:
        scheduler: its sequences are running, waiting and paused.
        requests: all of them, by caller, so that a long queue need not be counted.
        held: sequences that step extensions hold; they are listed as waiting.
    """
    now, cache, running = time.time(), scheduler.cache, scheduler.running
    waiting = len(scheduler.waiting) + len(held)
    slots = {sequence: scheduler.pool.missing(sequence.shared, len(sequence.slots)) for sequence in running}
    return {
        "time": now,
        "slots": {
            "capacity": scheduler.pool.capacity,
            "free": scheduler.pool.free,
            "cached_unused": cache.evictable,
            "cached_in_use": cache.size - cache.evictable,
            "running": sum(slots.values()),
        },
        "callers": _callers(requests, slots),
        "running": [_request(sequence, now, slots[sequence]) for sequence in islice(running, MAX_REQUESTS)],
        "waiting": [_request(sequence, now, 0) for sequence in islice(chain(scheduler.waiting, held), MAX_REQUESTS)],
        "counts": {"running": len(running), "waiting": waiting, "paused": len(scheduler.paused)},
        "prefix_cache": _cached(cache),
    }


def _callers(requests: OpenRequests, slots: dict[Sequence, int]) -> list[dict[str, Any]]:
    """Return what each caller has, those with the most KV slots first."""
    owned, running = Counter[str](), Counter[str]()
    for sequence, count in slots.items():
        owned[sequence.caller] += count
        running[sequence.caller] += 1
    opened = requests.by_caller()
    callers = sorted(opened, key=lambda caller: (-owned[caller], -running[caller], -opened[caller], caller))
    return [
        {"caller": caller, "slots": owned[caller], "running": running[caller], "open": opened[caller]}
        for caller in callers[:MAX_CALLERS]
    ]


def _request(sequence: Sequence, now: float, slots: int) -> dict[str, Any]:
    return {
        "id": sequence.request.id,
        "caller": sequence.caller,
        "age": max(0.0, now - sequence.arrived),
        "priority": sequence.priority,
        "prompt_tokens": sequence.prompt_len,
        "cached_tokens": sequence.service.cached,
        "computed_tokens": sequence.computed,
        "generated_tokens": sequence.generated,
        "most_tokens": sequence.limit,
        "slots": slots,
        "shared_slots": sequence.shared,
        "retractions": sequence.service.retractions,
    }


def _cached(cache: PrefixCache) -> dict[str, Any]:
    runs = cache.outline(MAX_RUNS)
    return {"tokens": cache.size, "runs": [_run(run) for run in runs]}


def _run(run: CachedSegment) -> dict[str, Any]:
    return {
        "parent": run.parent,
        "tokens": run.tokens,
        "hits": run.hits,
        "idle": run.idle,
        "locked": run.locked,
        "children": run.children,
    }
