"""Quantized checkpoints on the fake device, with Triton's kernels, with and without graphs, without synchronisation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fake_cuda.device.tensors import clock
from tests.fake_cuda.engine import Engine
from tests.quantized import in_awq, in_fp8_blocks, in_gptq, quantize, write

GROUP = 32
PROMPTS = ([5, 6, 7], [11, 12, 13, 14] * 20)
"""Prompts; the second has more rows in a step than the quantized kernel multiplies."""


def gptq(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(weight.shape[1])
    order = (torch.arange(weight.shape[1]) // GROUP)[torch.randperm(weight.shape[1], generator=generator)]
    quantized = quantize(weight, group=GROUP, index=order)
    return in_gptq(quantized), quantized.weight


def awq(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    quantized = quantize(weight, group=GROUP)
    return in_awq(quantized), quantized.weight


FORMATS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP}, awq),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, lambda name, weight: in_fp8_blocks(weight, 32, 32)),
}


def answers(engine: Engine, *, strict: bool) -> list[tuple[int, ...]]:
    names = [engine.submit(prompt, count=4) for prompt in PROMPTS]
    result = engine.finish(strict=strict)
    return [tuple(result[name].tokens) for name in names]


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("format", FORMATS)
def test_no_step_waits(format: str, tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    described, pack = FORMATS[format]
    write(tiny_model("llama-3.2-1b"), tmp_path / "stored", described, pack)
    engine = Engine(tmp_path / "stored", dtype="bfloat16", chunk=128)
    clock.executed.clear()
    answers(engine, strict=True)
    assert clock.executed["dense_kernel"] > 0 and clock.executed["graph"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("format", ["gptq", "fp8"])
def test_answers_are_those_of_the_host(format: str, tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    described, pack = FORMATS[format]
    write(tiny_model("llama-3.2-1b"), tmp_path / "stored", described, pack)
    engine = Engine(tmp_path / "stored", dtype="float32", disable_cuda_graph=True, chunk=128)
    host = Engine(tmp_path / "stored", dtype="float32", device="cpu", attention="torch", kernels="torch", chunk=128)
    clock.executed.clear()
    assert answers(engine, strict=True) == answers(host, strict=False)
    assert clock.executed["quantized_kernel"] > 0
