"""A whole engine on an asynchronous fake device synchronises only to read reported tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.executors import decode_graphs
from sglang_plug import LogprobOptions
from sglang_plug_backends.recurrent_state.extension import RecurrentState
from tests.e2e.vision_families import FAMILIES as VISION_FAMILIES
from tests.e2e.vision_models import make_vision_model, png
from tests.fake_cuda.device.tensors import DeviceTensor, clock
from tests.fake_cuda.engine import Engine, plugin_of

Tiny = Callable[[str], Any]


def submit_all_kinds(engine: Engine) -> None:
    """Submit requests of all kinds: chunked prompts, mixed steps, all sampling parameters."""
    engine.submit(range(3, 13))
    engine.submit(range(3, 9), logprobs=LogprobOptions(start=0, top=3, ids=(4, 5)))
    engine.submit(range(3, 9), logit_bias={5: 1.0}, stop_token_ids=(2,), min_new_tokens=2)
    engine.submit(range(40, 90), 2)
    engine.submit([7], frequency_penalty=0.4, repetition_penalty=1.2)
    engine.submit(range(50, 60), temperature=0.8)
    engine.submit(range(50, 60), 3, temperature=0.8, top_k=5, top_p=0.9, min_p=0.01)
    engine.submit(range(3, 25))


FAMILIES = ["llama-3.2-1b", "qwen3-moe", "deepseek-v3", "gemma-3-1b", "gpt2", "qwen3.5", "mamba-2-130m"]


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_waits(tiny_model: Tiny, family: str) -> None:
    engine = Engine(tiny_model(family).path, dtype="bfloat16", cuda_graph_max_bs=4)
    assert all(isinstance(parameter, DeviceTensor) for parameter in engine.loop.runner.components.model.parameters())
    clock.executed.clear()
    submit_all_kinds(engine)
    engine.finish()
    attends = engine.loop.runner.backend.shape.layers > 0
    assert (clock.executed["decode_kernel"] > 0) == attends and clock.executed["graph"] > 0


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize(
    "options",
    [{"overlap": False}, {"quantization": "fp8"}, {"kv_dtype": "fp8_e4m3"}, {"attention": "torch", "kernels": "torch"}],
    ids=str,
)
def test_no_step_waits_without_graphs(tiny_model: Tiny, options: dict[str, Any]) -> None:
    engine = Engine(tiny_model("qwen2.5-0.5b").path, dtype="bfloat16", disable_cuda_graph=True, **options)
    clock.executed.clear()
    submit_all_kinds(engine)
    engine.finish()
    assert "graph" not in clock.executed


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("family", ["gemma3", "mistral3", "qwen3-vl"])
def test_image_encoding_is_profiled_before_the_pool_is_sized(family: str, tmp_path: Path) -> None:
    """The device encodes the largest images that a prompt may have, and later the images of requests."""
    model = make_vision_model(family, tmp_path)
    largest = {"gemma3": 32, "mistral3": 90, "qwen3-vl": 100}[family]
    plugins = plugin_of("counted_images", f"model:{VISION_FAMILIES[family].architecture}")
    engine = Engine(
        model.path, plugins=plugins, pool=None, chunk=32, dtype="bfloat16", context=110, disable_cuda_graph=True
    )
    encoded = engine.loop.runner.components.model.encoded
    assert encoded == [(largest, True)]
    result = model.prompt(
        f"{VISION_FAMILIES[family].in_text} what? {VISION_FAMILIES[family].in_text}", [png(16, 16), png(8, 16)]
    )
    engine.submit(result.tokens, media=result.media)
    engine.finish(strict=False)
    assert len(encoded) > 1 and all(on_device for _, on_device in encoded)


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("family", ["llama-3.2-1b", "qwen3.5"])
def test_the_pool_is_sized_by_trying(tiny_model: Tiny, family: str) -> None:
    engine = Engine(tiny_model(family).path, pool=None, cuda_graph_max_bs=2)
    kv, states = engine.loop.runner.kv, engine.loop.extensions.start.memory
    assert kv is not None and all(isinstance(tensor, DeviceTensor) for tensor in (*kv.k, *kv.v))
    assert len(states) == (family == "qwen3.5")
    for extension in states:
        assert isinstance(extension, RecurrentState)
        assert all(isinstance(state, DeviceTensor) for state in extension.pool.states)
    submit_all_kinds(engine)
    engine.finish()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("family", ["qwen3-0.6b", "qwen3.5"])
def test_results_equal_those_of_a_cpu(tiny_model: Tiny, family: str) -> None:
    """Greedy outputs and log-probabilities are equal; the kernels assign random numbers to tokens in another order."""
    path, results = tiny_model(family).path, []
    for options in ({"cuda_graph_max_bs": 2}, {"attention": "torch", "device": "cpu"}):
        engine = Engine(path, kernels="torch", running=2, **options)  # type: ignore[arg-type]
        engine.submit(range(3, 40), 3)
        engine.submit(range(3, 9), 3, logprobs=LogprobOptions(start=0, top=2))
        engine.submit([7], 3, frequency_penalty=0.4, repetition_penalty=1.2)
        results.append(engine.finish())
    device, host = results
    assert clock.executed["graph"] > 2
    assert {name: output.tokens for name, output in device.items()} == {
        name: output.tokens for name, output in host.items()
    }
    for logprob, other in zip(device["1"].logprobs, host["1"].logprobs, strict=True):
        assert logprob.logprob == pytest.approx(other.logprob, abs=1e-3) and [t for t, _ in logprob.top] == [
            t for t, _ in other.top
        ]


@pytest.mark.usefixtures("idle_device")
def test_a_decode_step_queues_little(tiny_model: Tiny) -> None:
    """Few operations are queued besides the graph, in a batch that continues unchanged."""
    engine = Engine(tiny_model("llama-3.2-1b").path, dtype="bfloat16", cuda_graph_max_bs=4)
    for _ in range(3):
        engine.submit(range(3, 13), 12)
    for _ in range(4):
        engine.loop.step()
    clock.executed.clear()
    engine.loop.step()
    launches = clock.launches()
    assert launches["graph"] == 1
    assert sum(launches.values()) <= 8, launches


@torch.inference_mode()
@pytest.mark.usefixtures("idle_device")
def test_static_tensors_stay_where_they_are(tiny_model: Tiny) -> None:
    engine = Engine(tiny_model("llama-3.2-1b").path, cuda_graph_max_bs=4)
    graphs = decode_graphs(engine.loop.runner)
    assert graphs is not None and sorted(graphs.captured) == graphs.sizes

    def addresses() -> list[int]:
        batches = [graph.batch for _, graph in sorted(graphs.captured.items())]
        static = [
            tensor for batch in batches for tensor in (batch.input_ids, batch.positions, batch.slots, batch.tables)
        ]
        return [tensor.data_ptr() for tensor in (*static, *(batch.plan.decode.index for batch in batches))]

    before = addresses()
    submit_all_kinds(engine)
    engine.finish()
    assert addresses() == before
