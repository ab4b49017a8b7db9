"""Generation with recorded decode steps equals generation without them bit for bit."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu.executors import decode_graphs
from sglang_plug import EngineConfig, LogprobOptions, Plugins, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ParallelOptions, ScheduleOptions
from sglang_plug.engine.execution.executors import StepExecutors
from sglang_plug.engine.messages.api_messages import Abort, Control, FromEngine, Reply, StepOutputs, Submit, ToEngine
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat

pytestmark = pytest.mark.usefixtures("compiled")
RECORDED = ["llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b", "gemma-2-2b", "gemma-3-1b", "phi-3-mini"]
RECORDED += ["phi-4-mini", "olmo-2-1b", "gpt2"]
RECURRENT = ["qwen3.5", "mamba-130m"]
OTHERS = ["qwen3-moe", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3", "starcoder2-3b"]
"""Families whose steps need not be recorded."""
VOCABULARY = 512
Outputs = dict[str, list[tuple[int, float]]]


class Engine:
    """An engine whose steps the test runs, so that batches are the same in each run."""

    def __init__(
        self,
        path: Path,
        *,
        graphs: bool,
        pool: int = 4096,
        quantization: str = "auto",
        overlap: bool = False,
        ranks: int = 1,
        **model: Any,
    ) -> None:
        config = EngineConfig(
            model=ModelOptions(path=str(path), device="cpu", dtype="bfloat16", **model),
            cache=CacheOptions(max_total_tokens=pool),
            # without a target, which would let the speed of the machine decide on the batches
            schedule=ScheduleOptions(chunked_prefill_size=32, max_running_requests=16, target_itl_ms=0.0),
            backends=BackendOptions(
                attention="avx512", kernels="avx512", quantization=quantization, disable_cuda_graph=not graphs
            ),
            parallel=ParallelOptions(tp_size=ranks, executor="threads" if ranks > 1 else "auto"),
        )
        self.messages: list[ToEngine] = []
        self.outputs: Outputs = {}
        self.without_logprobs: set[str] = set()
        self.replies: list[Reply] = []
        self.retractions = 0
        self.loop = build_engine(config, Plugins.discover(config.plugins), self, self.hear, Heartbeat())
        self.loop.pipeline.overlap = overlap
        self.replayed: Counter[int] = Counter()
        self._watch()

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return the messages of the engine's inbox."""
        taken, self.messages = self.messages, []
        return taken

    def hear(self, message: FromEngine) -> None:
        if isinstance(message, Reply):
            self.replies.append(message)
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            assert output.finish is None or output.finish.reason != "error", output.finish
            asked = output.id not in self.without_logprobs
            logprobs = [item.logprob for item in output.logprobs] if asked else [0.0] * len(output.tokens)
            self.outputs.setdefault(output.id, []).extend(zip(output.tokens, logprobs, strict=True))
            self.retractions += output.retractions

    def submit(self, name: str, tokens: list[int], count: int, *, logprobs: bool = True, **params: Any) -> None:
        settings = SamplingParams(max_new_tokens=count, **{"temperature": 0.0, **params})
        options = LogprobOptions() if logprobs else None
        if not logprobs:
            self.without_logprobs.add(name)
        self.messages.append(Submit(Request(id=name, tokens=tuple(tokens), params=settings, logprobs=options)))

    def finish(self) -> Outputs:
        while self.messages or self.loop.scheduler.busy:
            self.loop.step()
        self.loop.scheduler.check()
        return self.outputs

    def _watch(self) -> None:
        graphs = decode_graphs(self.loop.runner)
        if graphs is None:
            return
        run = graphs.decode

        def watched(model: Any, chunks: Any, options: Any = None) -> Any:
            result = run(model, chunks, options)
            self.replayed[len(chunks)] += result is not None
            return result

        graphs.decode = watched  # type: ignore[method-assign]
        self.loop.runner.executors = StepExecutors.of(self.loop.runner.executors.by_name)


def prompt(length: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, VOCABULARY) for _ in range(length)]


def crowd(engine: Engine) -> Outputs:
    """Run one sequence, then three, eight and nine at once, then eleven that start at different times; some share a
    prefix."""
    for size in (1, 3, 8, 9):
        for row in range(size):
            engine.submit(f"{size} {row}", prompt(30 - row, row), 4)
        engine.finish()
    for row in range(11):
        tokens = prompt(40, 0)[:33] + prompt(row, row) if row % 3 == 0 else prompt(5 + 7 * row, row)
        engine.submit(f"{row}", tokens, 8 + 3 * row)
        engine.loop.step()
    engine.messages.append(Abort(("4",)))
    engine.finish()
    del engine.outputs["4"]  # the number of its output tokens before the abort is not defined
    return engine.outputs


@pytest.mark.parametrize("family", RECORDED + RECURRENT)
def test_families(family: str, tiny_model: Callable[..., Any]) -> None:
    path = tiny_model(family).path
    plain, recorded = Engine(path, graphs=False), Engine(path, graphs=True)
    expected = crowd(plain)
    assert crowd(recorded) == expected and len(expected) == 31
    # recurrent models reuse no prefix here, so that their prompts exceed one step
    largest = 7 if family in RECURRENT else 8
    assert all(recorded.replayed[size] for size in (1, 3, largest)) and not recorded.replayed[9]
    assert decode_graphs(recorded.loop.runner) is not None and decode_graphs(plain.loop.runner) is None


def test_replays_that_are_launched_one_ahead(tiny_model: Callable[..., Any]) -> None:
    """The requests of a group arrive together, because a request that arrives during a step would change the batch
    sizes."""
    ahead, plain = (Engine(tiny_model("llama-3.2-1b").path, graphs=on, overlap=on) for on in (True, False))
    for engine in (ahead, plain):
        for size in (1, 3, 8, 11):
            for row in range(size):
                engine.submit(f"{size} {row}", prompt(30 - row, row), 4 + 3 * row)
            engine.finish()
    assert ahead.outputs == plain.outputs and len(ahead.outputs) == 23
    assert all(ahead.replayed[size] for size in range(1, 9))


@pytest.mark.parametrize("family", OTHERS)
def test_families_that_are_served_without(family: str, tiny_model: Callable[..., Any]) -> None:
    path = tiny_model(family).path
    assert crowd(Engine(path, graphs=True)) == crowd(Engine(path, graphs=False))


def test_a_family_through_transformers(tiny_model: Callable[..., Any]) -> None:
    path = tiny_model("qwen3-0.6b").path
    results = [crowd(Engine(path, graphs=graphs, impl="transformers")) for graphs in (True, False)]
    assert results[0] == results[1]


def test_quantized_weights(tiny_model: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    plain, recorded = (Engine(path, graphs=graphs, quantization="int8") for graphs in (False, True))
    assert crowd(recorded) == crowd(plain) and recorded.replayed[1]


def test_why_a_mixture_of_experts_is_not_recorded(
    tiny_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine = Engine(tiny_model("qwen3-moe").path, graphs=True)
    (record,) = [line for line in caplog.records if "run without decode graphs" in line.message]
    assert record.levelno == logging.INFO and "aten::bincount" in record.message
    assert decode_graphs(engine.loop.runner) is not None and not decode_graphs(engine.loop.runner).captured


def test_retracted_sequences(tiny_model: Callable[..., Any]) -> None:
    results = []
    for graphs in (False, True):
        engine = Engine(tiny_model("llama-3.2-1b").path, graphs=graphs, pool=140)
        for row in range(4):
            engine.submit(f"{row}", prompt(20, row), 40)
        results.append(engine.finish())
        assert engine.retractions
        assert not graphs or engine.replayed.total() > 40
    assert results[0] == results[1]


def test_sampling(tiny_model: Callable[..., Any]) -> None:
    results = []
    for graphs in (False, True):
        engine = Engine(tiny_model("llama-3.2-1b").path, graphs=graphs)
        engine.submit("penalty", prompt(9, 1), 20, frequency_penalty=1.5)
        engine.submit("bias", prompt(9, 2), 20, logit_bias={11: 100.0})
        engine.submit("sampled", prompt(9, 3), 20, temperature=1.0, seed=5)
        results.append(engine.finish())
    assert results[0] == results[1] and [token for token, _ in results[1]["bias"]] == [11] * 20


def test_new_weights_are_recorded(tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    old = tiny_model("llama-3.2-1b").path
    new = tmp_path / "new"
    new.mkdir()
    (new / "config.json").write_text(json.dumps(json.loads((old / "config.json").read_text())))
    torch.manual_seed(1)
    weights = load_file(old / "model.safetensors")
    save_file({name: torch.randn_like(tensor) * 0.2 for name, tensor in weights.items()}, new / "model.safetensors")
    updated, fresh = Engine(old, graphs=True), Engine(new, graphs=False)
    updated.submit("before", prompt(9, 1), 20)
    updated.finish()
    updated.messages.append(Control(1, "update_weights", {"source": str(new)}))
    updated.loop.step()
    assert updated.replies[0].error is None
    for engine in (updated, fresh):
        engine.submit("after", prompt(9, 1), 20)
        engine.finish()
    assert updated.outputs["after"] == fresh.outputs["after"] != updated.outputs["before"]
    assert updated.replayed[1] == 38
