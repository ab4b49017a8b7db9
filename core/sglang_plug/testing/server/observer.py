"""Conformance test of observers: a server's notifications, as they come in practice."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from sglang_plug.contracts.serving.observer import Observer, RequestEvent, StepStats
from sglang_plug.testing.declared import factory_of
from sglang_plug.testing.lifecycle import INFO, check_lifecycle
from sglang_plug.testing.memory import check_kept

LIFECYCLE = ("on_start", "on_stop")
METHODS = ("on_start", "on_tokens", "on_step", "on_request", "on_stop")
REASONS = ("stop", "length", "abort", "error")
BLOCKING = 0.05
"""Seconds that no call may take."""
TRIES = 5
"""Calls, the shortest of which counts: others may have been delayed by something else."""


def check_observer(observer: str | Callable[[], Observer]) -> None:
    """Notify an observer of a server's start, of steps and requests that end in every way, and of the stop.

    No method raises, returns anything or takes long: they are called from the event loop. ``on_stop`` releases what
    ``on_start`` acquired, see ``check_lifecycle``. Two instances do not disturb
    each other, requests that have ended are not kept, and a server that stops before it was ready is no error.

    Args:
        observer: makes one, or the name an installed plugin declared it under.

    Raises:
        AssertionError: names the first method that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    make = factory_of("observer", observer, base=Observer)
    first, second = make(), make()
    for name in METHODS:
        assert isinstance(first, Observer), f"{type(first).__name__} is not an Observer"
        is_async = inspect.iscoroutinefunction(getattr(first, name))
        assert name in LIFECYCLE or not is_async, f"{name}() is async, so it would never run"
    _call(make(), "on_stop")
    _check_durations(make())  # before the thousands of calls below
    for instance in (first, second):
        info = deepcopy(dict(INFO))
        _check_result(instance, "on_start", info)
        assert info == INFO, f"{type(instance).__name__}.on_start() changed the facts that other observers get, too"
    for number in range(40):
        _notify(first, number)
        _notify(second, 1000 + number)
    check_kept(lambda number: _notify(first, 10_000 + number), type(first).__name__)
    for instance in (first, second):
        _check_result(instance, "on_stop")
    check_lifecycle(make, may_be_async=True)


def _call(observer: Observer, name: str, *arguments: Any) -> Any:
    try:
        result = getattr(observer, name)(*arguments)
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    except Exception as error:
        raise AssertionError(f"{type(observer).__name__}.{name}() raised {type(error).__name__}: {error}") from error


def _check_result(observer: Observer, name: str, *arguments: Any) -> None:
    result = _call(observer, name, *arguments)
    assert result is None, f"{type(observer).__name__}.{name}() returned {result!r}; nobody reads it"


def _notify(observer: Observer, number: int) -> None:
    """Serve request ``number``: one ended with a stop token, cut off, aborted before its first token, or failed."""
    reason = REASONS[number % len(REASONS)]
    begun = reason in ("stop", "length")
    id = f"request-{number}-é\n"
    stats = _step(prefill=1 if begun else 0, decode=number % 7)
    before = replace(stats)
    _check_result(observer, "on_step", stats)
    assert stats == before, f"{type(observer).__name__}.on_step() changed the statistics that other observers get, too"
    for tokens in (1, 3, 0) if begun else ():
        _check_result(observer, "on_tokens", id, tokens, time.time())
    _check_result(observer, "on_request", _ended(id, reason, begun))


def _step(*, prefill: int, decode: int) -> StepStats:
    return StepStats(
        time=time.time(),
        seconds=0.0 if not (prefill or decode) else 0.01,
        prefill_sequences=prefill,
        prefill_tokens=17 * prefill,
        cached_tokens=0,
        decode_sequences=decode,
        running=prefill + decode,
        waiting=0,
        used_slots=30,
        cached_slots=10,
        free_slots=60,
        capacity=100,
        retracted=0,
        queue_seconds=(0.001,) * prefill,
    )


def _ended(id: str, reason: str, begun: bool) -> RequestEvent:
    now = time.time()
    return RequestEvent(
        id=id,
        reason=reason,
        prompt_tokens=17,
        cached_tokens=0,
        output_tokens=4 if begun else 0,
        arrived=now - 1,
        first_token=now - 0.5 if begun else None,
        finished=now,
        request=id,
    )


def _examples(id: str) -> dict[str, tuple[Any, ...]]:
    """Return arguments of each method that is called while a request is served, in the order of the calls."""
    return {
        "on_step": (_step(prefill=1, decode=3),),
        "on_tokens": (id, 4, time.time()),
        "on_request": (_ended(id, "stop", True),),
    }


def _check_durations(observer: Observer) -> None:
    _call(observer, "on_start", dict(INFO))
    shortest: dict[str, float] = {}
    for number in range(TRIES):
        for name, arguments in _examples(f"request-{number}").items():
            began = time.perf_counter()
            _call(observer, name, *arguments)
            shortest[name] = min(shortest.get(name, math.inf), time.perf_counter() - began)
    _call(observer, "on_stop")
    for name, seconds in shortest.items():
        assert seconds < BLOCKING, (
            f"{type(observer).__name__}.{name}() takes {seconds:.2f} s, in which the server answers nobody; "
            "hand the work to a thread"
        )
