"""Steps of one short prompt: launched kernel by kernel, and as piecewise graphs.

The piecewise graphs are those of ``--piecewise-cuda-graph-max-tokens``. The time is from the request to its first
token, in an otherwise idle engine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.engine_driver import ListInbox, nobody
from benchmarks.common.models import SHAPES, Shape
from benchmarks.gpu.executors import PIECEWISE_GRAPHS, prefill_graphs, without
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import Plugins, Request, SamplingParams
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import Submit
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat

LENGTHS = (16, 64, 256, 512)
"""Prompt lengths in tokens."""
REPEATS, WARM = 15, 3
"""Repetitions of each length, and how many of these are warm-up."""


def prompt_steps(
    device: str, backend: str, *shapes: str, lengths: Sequence[int] = LENGTHS, repeats: int = REPEATS
) -> dict[str, Any]:
    """Return for each shape the milliseconds of each length both ways, and the slowdown without pieces."""
    return {name: _of_shape(device, backend, SHAPES[name], lengths, repeats) for name in shapes}


def _of_shape(device: str, backend: str, shape: Shape, lengths: Sequence[int], repeats: int) -> dict[str, Any]:
    choice = Choice(
        shape=shape,
        device=device,
        attention=backend,
        running=4,
        chunk=max(lengths),
        max_total_tokens=4 * max(lengths),
        prefix_cache="none",
        piecewise=max(lengths),
    )
    inbox = ListInbox()
    with tempfile.TemporaryDirectory() as folder:
        loop = build_engine(choice.config(Path(folder)), Plugins.discover(), inbox, nobody, Heartbeat())
    pieces, executors = prefill_graphs(loop.runner), loop.runner.executors
    if device.startswith("cuda") and (pieces is None or not pieces.captured):
        raise AssertionError("the model was not captured in pieces; the log tells why")
    results: dict[str, Any] = {}
    for length in lengths:
        ways = {}
        for name, used in (("eager", without(loop.runner, PIECEWISE_GRAPHS)), ("pieces", executors)):
            loop.runner.executors = used
            ways[name] = _milliseconds(
                loop, inbox, Load(url="", requests=repeats, input_len=length, vocabulary=shape.vocabulary)
            )
        results[str(length)] = {**ways, "ratio": ways["eager"] / ways["pieces"]}
    return results


def _milliseconds(loop: EngineLoop, inbox: ListInbox, load: Load) -> float:
    """Return the median of the step that computes a prompt of ``load`` and its first token."""
    seconds = []
    params = SamplingParams(max_new_tokens=1, temperature=0.0)
    for number, tokens in enumerate(prompts(load)):
        inbox.messages.append(Submit(Request(id=f"{load.input_len}-{number}", tokens=tuple(tokens), params=params)))
        started = time.perf_counter()
        while inbox.messages or loop.busy:
            loop.step()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds[WARM:])
