"""Memory that a component keeps of requests that have ended."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

WARM_UP, REQUESTS, ATTEMPTS = 500, 4000, 2
KEPT_BYTES = 100
"""Bytes that may be kept of each request that has ended, unless another number is given."""


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
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        # Something may be allocated once, by another thread as well; what is kept of requests grows each time.
        for attempt in range(ATTEMPTS):
            kept = _growth(serve, warm_up + attempt * requests, requests)
            if kept < allowed * requests:
                return
    finally:
        if not tracing:
            tracemalloc.stop()
    raise AssertionError(f"{name} keeps {kept // requests} bytes of each request that has ended")


def _growth(serve: Callable[[int], None], first: int, requests: int) -> int:
    """Return the bytes by which the traced memory grows with some requests."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(first, first + requests):
        serve(number)
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before
