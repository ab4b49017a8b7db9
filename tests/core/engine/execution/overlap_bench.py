"""Pairs of engines, with and without overlapped steps, that serve the same requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    EngineConfig,
    Output,
    PluginOptions,
    Plugins,
    Request,
    SamplingParams,
)
from sglang_plug.clients.pending import merge
from sglang_plug.config import BackendOptions, CacheOptions, ScheduleOptions
from sglang_plug.contracts.text.tokenizer import Tokenizer, TokenizerSource
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.sequences.launched_step import DeferredSampling
from sglang_plug.engine.startup import build
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

QUESTIONS = ("Tell me a story.", "Count from 1 to 10.", "Who are you?", "List 3 countries and their capitals.")
SCHEMA = """{"type": "object", "required": ["name", "age"], "additionalProperties": false,
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}}}"""


@cache
def _tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer once for all engines, because loading takes longer than some tests."""
    return load_tokenizer(TokenizerSource(path=path))


class Engine:
    """An engine whose steps the test runs; with graphs where the machine supports them."""

    def __init__(
        self,
        *,
        overlap: bool,
        graphs: bool = True,
        pool: int = 4096,
        running: int = 16,
        plugins: PluginOptions | None = None,
    ) -> None:
        config = EngineConfig(
            plugins=plugins or PluginOptions(),
            cache=CacheOptions(max_total_tokens=pool),
            # without a target, which would let the speed of the machine decide on the batches
            schedule=ScheduleOptions(chunked_prefill_size=64, max_running_requests=running, target_itl_ms=0.0),
            backends=BackendOptions(disable_cuda_graph=not graphs),
            log_level="warning",
        )
        self.messages: list[ToEngine] = []
        self.outputs: dict[str, Output] = {}
        self.events: dict[str, list[int]] = {}
        self.loop = build.build_engine(config, Plugins.discover(config.plugins), self, self.hear, Heartbeat())
        assert self.loop.pipeline.overlap is False, "a CPU does not work on its own"
        self.loop.pipeline.overlap = overlap
        self.ahead = self.deferred = 0
        self._watch()
        self.tokenizer = _tokenizer(Path(self.loop.info["checkpoint_path"]))

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return the messages of the engine's inbox."""
        taken, self.messages = self.messages, []
        return taken

    def hear(self, message: FromEngine) -> None:
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            before = self.outputs.get(output.id)
            self.outputs[output.id] = output if before is None else merge(before, output)
            self.events.setdefault(output.id, []).append(len(output.tokens))

    def submit(self, id: str, question: str, **options: Any) -> None:
        fields = {name: options.pop(name) for name in ("logprobs", "constraint", "reasoning_prefix") if name in options}
        tokens = self.tokenizer.encode(self.tokenizer.chat([{"role": "user", "content": question}]), special=False)
        stops = self.tokenizer.eos_token_ids
        params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 24, "stop_token_ids": stops, **options})
        self.messages.append(Submit(Request(id=id, tokens=tuple(tokens), params=params, **fields)))

    def text(self, id: str) -> str:
        return self.tokenizer.decode(self.outputs[id].tokens)

    def step(self) -> None:
        self.loop.step()
        self.loop.scheduler.check()

    def finish(self) -> dict[str, Output]:
        try:
            while self.messages or self.loop.busy:
                self.step()
                if self.loop.scheduler.accounts()["running"] == 0:  # gives the threads that compile grammars time
                    time.sleep(0.001)
        finally:
            self.loop.close()
        assert not self.loop.pipeline.in_flight
        return self.outputs

    def _watch(self) -> None:
        launch = self.loop.runner.launch

        def watched(chunks: Any, before: Any = None) -> Any:
            self.ahead += before is not None
            launched = launch(chunks, before)
            self.deferred += isinstance(launched, DeferredSampling)
            return launched

        self.loop.runner.launch = watched  # type: ignore[method-assign]


def compare_with_overlap(fill: Callable[[Engine], None], **options: Any) -> tuple[Engine, Engine]:
    """Serve the same requests without and with overlap; assert equal outputs, with log-probabilities up to rounding."""
    engines = Engine(overlap=False, **options), Engine(overlap=True, **options)
    for engine in engines:
        fill(engine)
        engine.finish()
    plain, other = (engine.outputs for engine in engines)
    assert plain.keys() == other.keys()
    for id, output in plain.items():
        assert without_numbers(other[id]) == without_numbers(output), id
        assert numbers(other[id]) == pytest.approx(numbers(output), abs=1e-4), id
    assert engines[0].events == engines[1].events
    assert engines[0].ahead == 0 and engines[1].ahead > 10
    return engines


def without_numbers(output: Output) -> Output:
    def bare(reported: Any) -> Any:
        return tuple(replace(entry, logprob=None, top=(), ids=()) for entry in reported)

    return replace(output, logprobs=bare(output.logprobs), prompt_logprobs=bare(output.prompt_logprobs))


def numbers(output: Output) -> list[float]:
    reported = (*output.prompt_logprobs, *output.logprobs)
    picked = [entry.logprob for entry in reported if entry.logprob is not None]
    return picked + [number for entry in reported for _, number in (*entry.top, *entry.ids)]
