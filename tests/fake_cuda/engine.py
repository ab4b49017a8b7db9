"""An engine on the fake device, whose steps a test runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sglang_plug import EngineConfig, Output, Plugins, Request, SamplingParams
from sglang_plug.clients.pending import merge
from sglang_plug.config import (
    AdapterOptions,
    BackendOptions,
    CacheOptions,
    ModelOptions,
    PluginOptions,
    ScheduleOptions,
)
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from tests.fake_cuda.device.runtime import without_synchronization

PLUGIN_FILES = Path(__file__).parent / "plugin_files"
FIELDS = ("logprobs", "constraint", "task", "media", "adapter")
"""Request fields other than tokens and parameters."""


def plugin_of(name: str, *components: str) -> PluginOptions:
    """Return options with a plugin of ``plugin_files`` whose ``components``, ``kind:name``, are preferred."""
    file = str(PLUGIN_FILES / f"{name}.py")
    return PluginOptions(files=(file,), prefer=dict.fromkeys(components, file))


class Engine:
    """An engine whose steps wait for the device only to read the tokens that they report."""

    def __init__(
        self,
        path: Any,
        *,
        attention: str = "triton",
        kernels: str = "triton",
        dtype: str = "float32",
        device: str = "cuda",
        pool: int | None = 512,
        overlap: bool = True,
        chunk: int = 32,
        running: int = 8,
        quantization: str = "auto",
        kv_dtype: str = "auto",
        task: str = "auto",
        context: int | None = None,
        adapters: tuple[str, ...] = (),
        plugins: PluginOptions | None = None,
        **backends: Any,
    ) -> None:
        config = EngineConfig(
            model=ModelOptions(path=str(path), device=device, dtype=dtype, task=task, context_length=context),
            cache=CacheOptions(max_total_tokens=pool, kv_dtype=kv_dtype),
            schedule=ScheduleOptions(
                chunked_prefill_size=chunk,
                max_running_requests=running,
                disable_overlap_schedule=not overlap,
                target_itl_ms=0.0,  # the speed of the machine must not decide on the batches
            ),
            backends=BackendOptions(attention=attention, kernels=kernels, quantization=quantization, **backends),
            adapters=AdapterOptions(paths=adapters),
            plugins=plugins or PluginOptions(),
            log_level="warning",
        )
        self.messages: list[ToEngine] = []
        self.outputs: dict[str, Output] = {}
        self.loop = build_engine(config, Plugins.discover(config.plugins), self, self.hear, Heartbeat())

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return the messages of the engine's inbox."""
        taken, self.messages = self.messages, []
        if wait and not taken:
            time.sleep(0.02)  # a grammar is being compiled, in another process
        return taken

    def hear(self, message: FromEngine) -> None:
        """Receive the engine's outputs."""
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            before = self.outputs.get(output.id)
            self.outputs[output.id] = output if before is None else merge(before, output)

    def submit(self, tokens: Iterable[int], count: int = 6, **options: Any) -> str:
        """Submit a request and return the name of its output."""
        fields = {name: options.pop(name) for name in FIELDS if name in options}
        params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": count, "seed": 3, **options})
        name = str(len(self.outputs) + len(self.messages))
        self.messages.append(Submit(Request(id=name, tokens=tuple(tokens), params=params, **fields)))
        return name

    def finish(self, *, strict: bool = True) -> dict[str, Output]:
        """Serve the submitted requests; synchronisation is an error if ``strict``."""
        try:
            with without_synchronization() if strict else nullcontext():
                while self.messages or self.loop.busy:
                    self.loop.step()
        finally:
            self.loop.close()
        self.loop.scheduler.check()
        for output in self.outputs.values():
            assert output.finish is not None and output.finish.reason != "error", output.finish
        return self.outputs
