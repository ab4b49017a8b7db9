"""Parts of an engine loop for tests, with a function in place of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_plug.engine.execution.pipeline import Pipeline
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.loop import EngineLoop, Inbox
from sglang_plug.engine.messages.api_messages import FromEngine
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug.testing.scheduler_parts import NO_EXTENSIONS


def update_nothing(source: str, revision: str | None) -> None:
    """Leave the weights as they are."""


def no_message(error: Exception) -> None:
    """Return ``None``, so that no error is taken for an out-of-memory error."""


def build_pipeline(
    scheduler: Scheduler, device: Any, *, overlap: bool, extensions: ExtensionPoints = NO_EXTENSIONS
) -> Pipeline:
    """Build a pipeline without worker ranks; ``device`` has the methods of a runner that the pipeline calls."""
    return Pipeline(
        scheduler,
        device,
        overlap=overlap,
        out_of_memory_message=no_message,
        describe=repr,
        shared=False,
        step_budget=extensions.planning.step_budget,
    )


def build_loop(
    scheduler: Scheduler,
    device: Any,
    inbox: Inbox,
    send: Callable[[FromEngine], None],
    *,
    info: dict[str, Any],
    max_queued: int,
    overlap: bool = False,
    update_weights: Callable[[str, str | None], None] = update_nothing,
    extensions: ExtensionPoints = NO_EXTENSIONS,
) -> EngineLoop:
    """Build an engine loop, with defaults for the parts that a test does not set; see ``EngineLoop``."""
    return EngineLoop(
        build_pipeline(scheduler, device, overlap=overlap, extensions=extensions),
        inbox,
        send,
        info=info,
        max_queued=max_queued,
        heartbeat=Heartbeat(),
        update_weights=update_weights,
        describe=repr,
        ranks=None,
        extensions=extensions,
        processors=LogitsProcessors(),
    )
