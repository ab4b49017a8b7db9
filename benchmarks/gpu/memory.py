"""Memory of the engine after its start and while it serves, compared with its share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.engine_driver import ListInbox
from benchmarks.common.models import Shape
from benchmarks.gpu.executors import decode_graphs
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import Plugins, Request, SamplingParams
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.memory.budget import DeviceMemory, device_memory
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.startup.kv_sizing import ACCELERATOR_FRACTION
from sglang_plug.engine.watchdog import Heartbeat

SLACK = 0.01
"""Tolerated share of the memory: libraries may allocate for shapes that were not profiled."""
STAGES = ("before the start", "weights", "largest step", "graphs", "KV pool")


def start_and_serve(
    device: str,
    shape: Shape,
    backend: str,
    load: tuple[int, int, int],
    memory_of: Callable[[torch.device], DeviceMemory | None] = device_memory,
) -> dict[str, Any]:
    """Start with default options and serve ``load`` (concurrent requests, tokens in, tokens out); figures in bytes.

    Raises ``AssertionError`` if requests fail, or more is taken than ``--mem-fraction-static`` allows.
    """
    count, length, output = load
    inbox, failures = ListInbox(), list[str]()

    def hear(message: FromEngine) -> None:
        for item in message.outputs if isinstance(message, StepOutputs) else ():
            if item.finish is not None and item.finish.reason == "error":
                failures.append(item.finish.message)

    with tempfile.TemporaryDirectory() as folder:
        config = Choice(shape=shape, device=device, attention=backend).config(Path(folder))
        loop = build_engine(config, Plugins.discover(), inbox, hear, Heartbeat(), memory_of=memory_of)
    memory = memory_of(torch.device(device))
    if memory is None:
        raise AssertionError(f"the memory of {device} cannot be accounted for")
    memory.release()
    after_start = memory.free()
    params = SamplingParams(max_new_tokens=output, temperature=0.8, top_p=0.9)
    requested = prompts(Load(url="", requests=count, input_len=length, vocabulary=shape.vocabulary))
    inbox.messages += [
        Submit(Request(id=str(number), tokens=tuple(item), params=params)) for number, item in enumerate(requested)
    ]
    while inbox.messages or loop.busy:
        loop.step()
    result = _figures(loop, memory, after_start)
    if failures:
        raise AssertionError(f"{len(failures)} of {count} requests failed, the first: {failures[0]}")
    allowed = (ACCELERATOR_FRACTION + SLACK) * result["total"]
    for name in ("free_after_start", "free_after_serving"):
        if result["total"] - result[name] > allowed:
            raise AssertionError(
                f"{name} is {result[name]:,} of {result['total']:,} bytes: more than the share is taken"
            )
    return result


def _figures(loop: EngineLoop, memory: DeviceMemory, after_start: int) -> dict[str, Any]:
    graphs = decode_graphs(loop.runner)
    return {
        "total": memory.total(),
        "stages": {name: loop.info["memory"].get(name, 0) for name in STAGES},
        "tokens": loop.info["max_total_tokens"],
        "captured": 0 if graphs is None else len(graphs.captured),
        "free_after_start": after_start,
        "free_after_serving": memory.free(),
    }
