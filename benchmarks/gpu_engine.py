"""An engine whose decode steps a script takes itself, so that the device's share of each can be timed."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.inbox import ListInbox
from benchmarks.load import Load, prompts
from benchmarks.models import Shape
from benchmarks.offline import Choice
from sglang_plug import Plugins, Request, SamplingParams
from sglang_plug.engine.build import build_engine
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages import FromEngine, Submit
from sglang_plug.engine.watchdog import Heartbeat


class Stopwatch:
    """Times a function on the device, or on the host where there is none."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._marks: list[tuple[Any, Any]] = []
        self._seconds: list[float] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, timed at each call."""

        def on_device(*given: Any, **named: Any) -> Any:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            found = function(*given, **named)
            after.record()
            self._marks.append((before, after))
            return found

        def on_host(*given: Any, **named: Any) -> Any:
            started = time.perf_counter()
            found = function(*given, **named)
            self._seconds.append(time.perf_counter() - started)
            return found

        return on_device if self._cuda else on_host

    def take(self) -> list[float]:
        """Seconds of each call since the last ``take``."""
        if self._cuda:
            torch.cuda.synchronize()
            self._seconds = [before.elapsed_time(after) / 1e3 for before, after in self._marks]
        taken, self._seconds, self._marks = self._seconds, [], []
        return taken


def decode_steps(device: str, shape: Shape, backend: str, count: int, prompt: int, output: int) -> dict[str, Any]:
    """Medians over the steps in which all of ``count`` requests decode, in seconds.

    ``device`` is the time of the replayed graph (without graphs: of the model); the rest of a step is the host's,
    in which the device does next to nothing.
    """
    choice = Choice(
        shape=shape,
        device=device,
        attention=backend,
        running=count,
        max_total_tokens=2 * count * (prompt + output),
    )
    watch = Stopwatch(device)
    inbox = ListInbox()
    with tempfile.TemporaryDirectory() as folder:
        config = choice.config(Path(folder))
        loop = build_engine(config, Plugins.discover(), inbox, _nobody, Heartbeat())
        graphed = _watch(loop, watch)
        load = Load(url="", requests=count, input_len=prompt, output_len=output, vocabulary=shape.vocabulary)
        params = SamplingParams(max_new_tokens=output, temperature=0.0)
        for number, tokens in enumerate(prompts(load)):
            inbox.messages.append(Submit(Request(id=str(number), tokens=tuple(tokens), params=params)))
        walls, works = [], []
        while inbox.messages or loop.scheduler.busy:
            started = time.perf_counter()
            loop.step()
            wall, work = time.perf_counter() - started, watch.take()
            if loop.scheduler.tally.decode_sequences == count and work:
                walls.append(wall)
                works.append(sum(work))
    wall, work = statistics.median(walls), statistics.median(works)
    return {
        "graphs": graphed,
        "steps": len(walls),
        "step": wall,
        "device": work,
        "host": wall - work,
        "host_share": (wall - work) / work,
        "idle_share": (wall - work) / wall,
    }


def _watch(loop: EngineLoop, watch: Stopwatch) -> bool:
    """Time the replays, or the model if there are none; True if there are."""
    graphs = loop.runner.graphs
    if graphs is None or not graphs.captured:
        model: Any = loop.runner.model
        model.forward = watch.timed(model.forward)
        return False
    for captured in graphs.captured.values():
        captured.replay = watch.timed(captured.replay)
    return True


def _nobody(message: FromEngine) -> None:
    """Where a client would be."""
