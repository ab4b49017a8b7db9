"""Parts of the benchmark for CUDA machines on the fake device: they find the graphs that they compare."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from torch import Tensor

from sglang_plug import ForwardBatch
from sglang_plug_backends.cuda_graphs.piecewise_graphs import Pieces

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("idle_device")
def test_prompts_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    gpu_prompts = importlib.import_module("benchmarks.gpu.prompts")
    monkeypatch.setattr(gpu_prompts, "LENGTHS", (4, 8))
    monkeypatch.setattr(gpu_prompts, "REPEATS", 4)
    replayed, run = list[int](), Pieces.run

    def noted(pieces: Pieces, batch: ForwardBatch, count: int) -> Tensor:
        replayed.append(count)
        return run(pieces, batch, count)

    monkeypatch.setattr(Pieces, "run", noted)
    assert list(gpu_prompts.prompt_steps("cuda", "triton", "tiny")["tiny"]) == ["4", "8"]
    assert replayed == [4] * 4 + [8] * 4


@pytest.mark.usefixtures("idle_device")
def test_decode_steps_with_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    gpu_adapters = importlib.import_module("benchmarks.gpu.adapters")
    monkeypatch.setattr(gpu_adapters, "BATCHES", (1, 2))
    result = gpu_adapters.adapter_steps("cuda", "tiny", "triton")
    assert list(result) == ["1", "2"]
    assert list(result["1"]) == ["none", "one", "several", "several, without graphs"]
