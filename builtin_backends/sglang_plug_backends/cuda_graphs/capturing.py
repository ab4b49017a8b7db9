"""The parts of capturing that graphs of decode steps and of prompts share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from sglang_plug.layers import Router
from sglang_plug_backends.byte_sizes import gigabytes
from sglang_plug_backends.progress_line import ProgressLine, bar


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


def capture_each(
    sizes: Sequence[int],
    capture: Callable[[int], None],
    progress: ProgressLine | None,
    *,
    steps: str,
    unit: str,
    free_bytes: Callable[[], int],
) -> None:
    """Capture each of ``sizes`` in this order; ``progress`` shows that ``steps`` of so many ``unit`` are captured."""
    with no_collection():
        for done, size in enumerate(sizes, 1):
            capture(size)
            if progress is not None:
                detail = f"{unit}={size} avail_mem={gigabytes(free_bytes())}"
                progress.show(done, bar(f"Capturing {steps} ({detail})", done, progress.total))


class Routers:
    """The routers of a model, whose watchers must be called in each step: none is replayed meanwhile.

    Args:
        model: the model that is captured.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        modules = () if model is None else model.modules()
        self._routers = [module for module in modules if isinstance(module, Router)]

    @property
    def are_watched(self) -> bool:
        """True while a watcher is set."""
        return any([router.watcher is not None for router in self._routers])
