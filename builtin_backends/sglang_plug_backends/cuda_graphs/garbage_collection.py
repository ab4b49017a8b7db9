"""Garbage collection while graphs are captured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Freeze existing objects while graphs are captured, because each capture collects garbage and would scan them."""
    if gc.get_freeze_count() > 0:  # they are frozen already, since the engine was ready
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
