"""When Python's garbage collector looks for what nothing refers to any more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """Inside, the collector does not run by itself: to be used around imports.

    They make hundreds of thousands of objects, all of which stay; looking through these again and again takes a quarter
    of the time of importing torch.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
