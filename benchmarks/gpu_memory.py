"""Does what the engine holds after its start, and needs while it serves, stay within its share of the memory?"""

from __future__ import annotations

import tempfile
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
from sglang_plug.engine.memory import DeviceMemory, device_memory
from sglang_plug.engine.messages import FromEngine, News, Submit
from sglang_plug.engine.sizing import ACCELERATOR_FRACTION
from sglang_plug.engine.watchdog import Heartbeat

SLACK = 0.01
"""Of the memory: libraries may take some for shapes that were not tried."""
STAGES = ("before the start", "weights", "largest step", "graphs", "KV pool")


def start_and_serve(
    device: str,
    shape: Shape,
    backend: str,
    load: tuple[int, int, int],
    memory_of: Callable[[torch.device], DeviceMemory | None] = device_memory,
) -> dict[str, Any]:
    """Start with options left alone, serve ``load`` (requests at once, tokens in, tokens out); figures in bytes.

    Raises ``AssertionError`` if requests fail, or more is taken than ``--mem-fraction-static`` allows.
    """
    count, length, output = load
    inbox, failures = ListInbox(), list[str]()

    def hear(message: FromEngine) -> None:
        for one in message.outputs if isinstance(message, News) else ():
            if one.finish is not None and one.finish.reason == "error":
                failures.append(one.finish.message)

    with tempfile.TemporaryDirectory() as folder:
        config = Choice(shape=shape, device=device, attention=backend).config(Path(folder))
        loop = build_engine(config, Plugins.discover(), inbox, hear, Heartbeat(), memory_of=memory_of)
    memory = memory_of(torch.device(device))
    if memory is None:
        raise AssertionError(f"the memory of {device} cannot be accounted for")
    memory.release()
    after_start = memory.free()
    params = SamplingParams(max_new_tokens=output, temperature=0.8, top_p=0.9)
    wanted = prompts(Load(url="", requests=count, input_len=length, vocabulary=shape.vocabulary))
    inbox.messages += [
        Submit(Request(id=str(number), tokens=tuple(one), params=params)) for number, one in enumerate(wanted)
    ]
    while inbox.messages or loop.busy:
        loop.step()
    found = _figures(loop, memory, after_start)
    if failures:
        raise AssertionError(f"{len(failures)} of {count} requests failed, the first: {failures[0]}")
    allowed = (ACCELERATOR_FRACTION + SLACK) * found["total"]
    for name in ("free_after_start", "free_after_serving"):
        if found["total"] - found[name] > allowed:
            raise AssertionError(f"{name} is {found[name]:,} of {found['total']:,} bytes: more than the share is taken")
    return found


def _figures(loop: EngineLoop, memory: DeviceMemory, after_start: int) -> dict[str, Any]:
    graphs = loop.runner.graphs
    return {
        "total": memory.total(),
        "stages": {name: loop.info["memory"].get(name, 0) for name in STAGES},
        "tokens": loop.info["max_total_tokens"],
        "captured": 0 if graphs is None else len(graphs.captured),
        "free_after_start": after_start,
        "free_after_serving": memory.free(),
    }
