"""Piecewise graphs for steps with prompts: equal outputs, no synchronisation, and few launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from benchmarks.gpu.executors import PIECEWISE_GRAPHS, prefill_graphs
from sglang_plug import Attention, ForwardBatch, LogprobOptions, Model, StepExecutor
from sglang_plug.engine.execution.executors import StepExecutors
from sglang_plug.engine.messages.api_messages import Control
from tests.builtin_backends.speculation.drafting_bench import speculate
from tests.builtin_backends.speculation.test_speculation_engine import guess_following
from tests.fake_cuda.device.tensors import clock
from tests.fake_cuda.engine import Engine, plugin_of
from tests.fake_cuda.test_engine import submit_all_kinds

Tiny = Callable[[str], Any]
MAX_TOKENS = 48
FAMILIES = ["llama-3.2-1b", "qwen3-moe", "deepseek-v3", "gemma-3-1b", "gpt2"]


class CountingExecutor(StepExecutor):
    """An executor that counts the tokens of steps and computes them with another executor."""

    def __init__(self, inner: StepExecutor) -> None:
        self._inner = inner
        self.tokens: list[int] = []
        """The tokens of each step; 0 if the other executor did not compute it."""

    def hidden(self, model: Model, batch: ForwardBatch) -> Tensor | None:
        states = self._inner.hidden(model, batch)
        self.tokens.append(0 if states is None else len(batch.input_ids))
        return states


def pieced(path: Any, **options: Any) -> Engine:
    return Engine(path, cuda_graph_max_bs=4, piecewise_cuda_graph_max_tokens=MAX_TOKENS, **options)


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_waits(tiny_model: Tiny, family: str) -> None:
    engine = pieced(tiny_model(family).path, dtype="bfloat16")
    graphs = prefill_graphs(engine.loop.runner)
    assert graphs is not None and sorted(graphs.captured) == graphs.sizes == [8, 16, 32, 40]
    layers = sum(isinstance(module, Attention) for module in engine.loop.runner.components.model.modules())
    clock.executed.clear()
    engine.submit(range(3, 13), 1)
    engine.finish()
    assert clock.executed["graph"] == layers + 1
    submit_all_kinds(engine)
    engine.finish()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("family", ["llama-3.2-1b", "gpt2", "gemma-3-1b"])
def test_results_equal_those_of_a_cpu(tiny_model: Tiny, family: str) -> None:
    path, results = tiny_model(family).path, []
    for options in ({"piecewise_cuda_graph_max_tokens": 24}, {"attention": "torch", "device": "cpu"}):
        engine = Engine(path, kernels="torch", running=3, chunk=20, **options)  # type: ignore[arg-type]
        engine.submit(range(3, 40), 3)
        engine.submit(range(3, 9), 3, logprobs=LogprobOptions(start=0, top=2))
        engine.submit([7], 3)
        engine.submit([9], 2)
        results.append(engine.finish())
    device, host = results
    assert clock.executed["graph"] > 6
    assert {name: output.tokens for name, output in device.items()} == {
        name: output.tokens for name, output in host.items()
    }
    for prompt_logprob, other in zip(device["1"].prompt_logprobs, host["1"].prompt_logprobs, strict=True):
        assert prompt_logprob.logprob == pytest.approx(other.logprob, abs=1e-3)


@pytest.mark.usefixtures("idle_device")
def test_a_prompt_takes_few_launches(tiny_model: Tiny) -> None:
    """Each layer launches a piece, its attention, and the copies to the next piece."""
    engine = pieced(tiny_model("llama-3.2-1b").path, dtype="bfloat16")
    graphs = prefill_graphs(engine.loop.runner)
    assert graphs is not None
    for length in (10, 12):
        clock.executed.clear()
        engine.submit(range(3, 3 + length), 1)
        engine.finish()
    launches = clock.launches()
    layers = len(graphs.captured[16].steps)
    assert launches["prefill_kernel"] == layers and launches["graph"] == layers + 1
    assert sum(launches.values()) <= 3 * layers + 18, launches


@pytest.mark.usefixtures("idle_device")
def test_new_weights_are_captured(tiny_model: Tiny) -> None:
    engine = pieced(tiny_model("llama-3.2-1b").path, dtype="bfloat16")
    graphs = prefill_graphs(engine.loop.runner)
    assert graphs is not None
    before = dict(graphs.captured)
    engine.messages.append(Control(1, "update_weights", {"source": str(tiny_model("llama-3.2-1b").path)}))
    engine.submit(range(3, 13), 1)
    engine.finish(strict=False)
    assert graphs.captured.keys() == before.keys() and graphs.captured[16] is not before[16]


@pytest.mark.usefixtures("idle_device")
def test_a_model_that_looks_at_lengths_runs_without(tiny_model: Tiny, caplog: Any) -> None:
    plugins = plugin_of("looking_model", "model:LlamaForCausalLM")
    engine = pieced(tiny_model("llama-3.2-1b").path, dtype="bfloat16", plugins=plugins)
    assert "it reads the lengths of sequences" in caplog.text
    clock.executed.clear()
    engine.submit(range(3, 13), 1)
    engine.finish()
    assert "graph" not in clock.executed


@pytest.mark.usefixtures("idle_device")
def test_steps_that_are_larger_run_without(tiny_model: Tiny) -> None:
    engine = pieced(tiny_model("llama-3.2-1b").path, dtype="bfloat16", chunk=64)
    clock.executed.clear()
    engine.submit(range(3, 3 + MAX_TOKENS + 1), 1)
    engine.finish()
    assert "graph" not in clock.executed


@pytest.mark.usefixtures("idle_device")
def test_steps_with_drafts_are_replayed(tiny_model: Tiny) -> None:
    path, prompt = tiny_model("llama-3.2-1b").path, list(range(3, 13))
    plain, engine = Engine(path, dtype="bfloat16"), pieced(path, dtype="bfloat16")
    plain.submit(prompt, 12)
    (known,) = plain.finish().values()
    runner = engine.loop.runner
    graphs = prefill_graphs(runner)
    assert graphs is not None
    guess = guess_following([[*prompt, *known.tokens]], 0.0, 100)
    speculate(engine.loop.scheduler, guess, vocabulary=engine.loop.info["vocab_size"])
    counting = CountingExecutor(graphs)
    runner.executors = StepExecutors.of({**runner.executors.by_name, PIECEWISE_GRAPHS: counting})
    engine.submit(prompt, 12)
    (result,) = engine.finish().values()
    assert result.tokens == known.tokens
    assert counting.tokens[0] == 10 and any(count > 1 for count in counting.tokens[1:])
