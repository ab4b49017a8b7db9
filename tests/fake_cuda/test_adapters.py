"""Steps with adapters do not synchronise with the device; steps without adapters are replayed from graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import LogprobOptions
from sglang_plug_backends.lora.adapters import Adapters
from sglang_plug_backends.lora.extension import Lora
from tests.fake_cuda.device.tensors import DeviceTensor, clock
from tests.fake_cuda.engine import Engine, plugin_of
from tests.peft_adapters import linears, make_lora

KERNEL_SETS = plugin_of("kernel_sets")


@pytest.fixture
def adapters(tiny_model: Callable[[str], Any], tmp_path: Path) -> tuple[str, ...]:
    """Return two adapters of different ranks for the tiny Llama, in the form of the option."""
    reference = tiny_model("llama-3.2-1b").reference
    names = linears(reference, r".*layers.*_proj")
    paths = [
        make_lora(tmp_path / name, reference, names, rank=4 + seed, seed=seed).path for seed, name in enumerate("xy")
    ]
    return tuple(f"{path.name}={path}" for path in paths)


def adapters_of(engine: Engine) -> Adapters:
    """Return the adapters that the engine's extension has loaded."""
    (extension,) = (extension for extension in engine.loop.extensions.forward.graphs if isinstance(extension, Lora))
    return extension.adapters


@pytest.mark.usefixtures("idle_device")
def test_no_step_waits(tiny_model: Callable[[str], Any], adapters: tuple[str, ...]) -> None:
    engine = Engine(tiny_model("llama-3.2-1b").path, dtype="bfloat16", cuda_graph_max_bs=4, adapters=adapters)
    for layer in adapters_of(engine).find("x").layers.values():
        assert all(isinstance(pair.down, DeviceTensor) for pair in layer.pairs)  # type: ignore[attr-defined]
    clock.executed.clear()
    engine.submit(range(3, 13), 3)
    engine.finish()
    replayed = clock.executed["graph"]
    assert replayed > 0
    for name in ("x", None, "y", "x"):
        engine.submit(range(3, 60), 8, adapter=name)
    engine.finish()
    with_adapters = clock.executed["graph"]
    assert with_adapters > replayed, "they are captured, too"
    engine.submit(range(3, 60), 8, adapter="y", temperature=0.8, logprobs=LogprobOptions(top=1))
    engine.finish()
    assert clock.executed["graph"] > with_adapters


@pytest.mark.usefixtures("device")
def test_results_equal_those_of_a_cpu(tiny_model: Callable[[str], Any], adapters: tuple[str, ...]) -> None:
    results = []
    for options in ({"cuda_graph_max_bs": 2}, {"attention": "torch", "device": "cpu"}):
        engine = Engine(tiny_model("llama-3.2-1b").path, kernels="torch", adapters=adapters, **options)  # type: ignore[arg-type]
        for name in ("x", None, "y"):
            engine.submit(range(3, 9), 3, adapter=name, logprobs=LogprobOptions())
        results.append(engine.finish())
    device, host = results
    assert len({item.tokens for item in host.values()}) == 3
    for name, output in host.items():
        assert device[name].tokens == output.tokens
        expected = [logprob.logprob for logprob in output.logprobs]
        assert [logprob.logprob for logprob in device[name].logprobs] == pytest.approx(expected, abs=1e-3)


@pytest.mark.usefixtures("idle_device")
def test_adapters_that_cannot_be_captured_leave_the_others_their_graphs(
    tiny_model: Callable[[str], Any], adapters: tuple[str, ...], caplog: Any
) -> None:
    engine = Engine(
        tiny_model("llama-3.2-1b").path,
        kernels="without-capture",
        plugins=KERNEL_SETS,
        dtype="bfloat16",
        cuda_graph_max_bs=2,
        adapters=adapters,
    )
    assert "Steps with adapters run without CUDA graphs" in caplog.text
    replayed = []
    for name in (None, "x"):
        clock.executed.clear()
        engine.submit(range(3, 13), 3, adapter=name)
        engine.finish()
        replayed.append(clock.executed["graph"])
    assert replayed[0] > 0 == replayed[1]


@pytest.mark.usefixtures("device")
def test_captured_steps_find_adapters_that_come_later(
    tiny_model: Callable[[str], Any], adapters: tuple[str, ...], tmp_path: Path
) -> None:
    """An adapter that is loaded later has a larger rank than the tables had room for."""
    model = tiny_model("llama-3.2-1b")
    names = linears(model.reference, r".*layers.*_proj")
    large = str(make_lora(tmp_path / "large", model.reference, names, rank=40, seed=7).path)
    results = []
    for options in (
        {"kernels": "only-adapters", "cuda_graph_max_bs": 2},
        {"kernels": "torch", "attention": "torch", "device": "cpu"},
    ):
        engine = Engine(model.path, plugins=KERNEL_SETS, adapters=adapters, **options)  # type: ignore[arg-type]
        serving = adapters_of(engine)
        tokens = {}
        for name in ("x", "large"):
            if name == "large":
                serving.unload("x")
                serving.load(name, large)
            ids = [engine.submit(range(3, 9), 2, adapter=item) for item in (name, None)]
            engine.finish()
            tokens[name] = [engine.outputs[item].tokens for item in ids]
        results.append(tokens)
        if serving.tables is not None:
            assert clock.executed["shrink_kernel"] > 0 and clock.executed["graph"] >= 2
            assert serving.tables.grown == 1, "64 ranks of one layer do not suffice"
            assert all(serving.find(name).slot for name in ("y", "large"))
    assert results[0] == results[1]
    assert len(set(map(tuple, chain(*results[0].values())))) == 3
