"""Steps with adapters do not wait for the device either; those without are replayed from graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import LogprobOptions
from sglang_plug.engine.adapters import Adapters
from sglang_plug_backends.triton import low_rank
from tests.fake_cuda.engine import Engine
from tests.fake_cuda.tensors import DeviceTensor, clock
from tests.peft_adapters import linears, make_lora


@pytest.fixture
def adapters(tiny_model: Callable[[str], Any], tmp_path: Path) -> tuple[str, ...]:
    """Two for the tiny Llama, of different ranks, as options name them."""
    reference = tiny_model("llama-3.2-1b").reference
    names = linears(reference, r".*layers.*_proj")
    paths = [
        make_lora(tmp_path / name, reference, names, rank=4 + seed, seed=seed).path for seed, name in enumerate("xy")
    ]
    return tuple(f"{one.name}={one}" for one in paths)


@pytest.mark.usefixtures("idle_device")
def test_no_step_waits(tiny_model: Callable[[str], Any], adapters: tuple[str, ...]) -> None:
    engine = Engine(tiny_model("llama-3.2-1b").path, dtype="bfloat16", cuda_graph_max_bs=4, adapters=adapters)
    assert engine.loop.adapters is not None
    for layer in engine.loop.adapters.find("x").layers.values():
        assert all(isinstance(one.down, DeviceTensor) for one in layer.pairs)  # type: ignore[attr-defined]
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
def test_what_is_computed_is_what_a_cpu_computes(tiny_model: Callable[[str], Any], adapters: tuple[str, ...]) -> None:
    found = []
    for options in ({"cuda_graph_max_bs": 2}, {"attention": "torch", "device": "cpu"}):
        engine = Engine(tiny_model("llama-3.2-1b").path, kernels="torch", adapters=adapters, **options)  # type: ignore[arg-type]
        for name in ("x", None, "y"):
            engine.submit(range(3, 9), 3, adapter=name, logprobs=LogprobOptions())
        found.append(engine.finish())
    device, host = found
    assert len({one.tokens for one in host.values()}) == 3
    for name, one in host.items():
        assert device[name].tokens == one.tokens
        expected = [found.logprob for found in one.logprobs]
        assert [found.logprob for found in device[name].logprobs] == pytest.approx(expected, abs=1e-3)


@pytest.mark.usefixtures("idle_device")
def test_adapters_that_cannot_be_captured_leave_the_others_their_graphs(
    tiny_model: Callable[[str], Any], adapters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(low_rank, "shrink_kernel", None)
    engine = Engine(tiny_model("llama-3.2-1b").path, dtype="bfloat16", cuda_graph_max_bs=2, adapters=adapters)
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
    tiny_model: Callable[[str], Any], adapters: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of more ranks than there was room for."""
    capture_by = Adapters.capture_by  # of all interpreted kernels only these
    monkeypatch.setattr(Adapters, "capture_by", lambda self, add: capture_by(self, low_rank.add_low_rank))
    model = tiny_model("llama-3.2-1b")
    names = linears(model.reference, r".*layers.*_proj")
    large = str(make_lora(tmp_path / "large", model.reference, names, rank=40, seed=7).path)
    found = []
    for options in ({"cuda_graph_max_bs": 2}, {"attention": "torch", "device": "cpu"}):
        engine = Engine(model.path, kernels="torch", adapters=adapters, **options)  # type: ignore[arg-type]
        serving = engine.loop.adapters
        assert serving is not None
        tokens = {}
        for name in ("x", "large"):
            if name == "large":
                serving.unload("x")
                serving.load(name, large)
            ids = [engine.submit(range(3, 9), 2, adapter=one) for one in (name, None)]
            engine.finish()
            tokens[name] = [engine.outputs[one].tokens for one in ids]
        found.append(tokens)
        if serving.tables is not None:
            assert clock.executed["shrink_kernel"] > 0 and clock.executed["graph"] >= 2
            assert serving.tables.grown == 1, "64 ranks of one layer do not suffice"
            assert all(serving.find(name).place for name in ("y", "large"))
    assert found[0] == found[1]
    assert len(set(map(tuple, chain(*found[0].values())))) == 3
