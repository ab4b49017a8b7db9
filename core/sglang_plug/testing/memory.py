"""Memory that a component keeps of requests that have ended."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WARM_UP, REQUESTS, ATTEMPTS = 500, 4000, 2
KEPT_BYTES = 100
"""Bytes that may be kept of each request that has ended, unless another number is given."""


@contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """Trace allocations inside the context, and provide a function that returns the bytes that are allocated."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        if not tracing:
            tracemalloc.stop()


def check_kept(
    serve: Callable[[int], None],
    name: str,
    *,
    warm_up: int = WARM_UP,
    requests: int = REQUESTS,
    allowed: int = KEPT_BYTES,
) -> None:
    """Raise ``AssertionError`` if memory grows with the number of requests that have ended.

    Args:
        serve: begins and ends the request of that number.
        name: the component, for the message.
        warm_up: requests before the first measurement.
        requests: requests between the measurements.
        allowed: bytes that may be kept of each.
    """
    for number in range(warm_up):
        serve(number)
    with traced_memory() as allocated:
        # Something may be allocated once, by another thread as well; what is kept of requests grows each time.
        for attempt in range(ATTEMPTS):
            kept = _growth(serve, warm_up + attempt * requests, requests, allocated)
            if kept < allowed * requests:
                return
    raise AssertionError(f"{name} keeps {kept // requests} bytes of each request that has ended")


def _growth(serve: Callable[[int], None], first: int, requests: int, allocated: Callable[[], int]) -> int:
    """Return the bytes by which the traced memory grows with some requests."""
    gc.collect()
    before = allocated()
    for number in range(first, first + requests):
        serve(number)
    gc.collect()
    return allocated() - before
