"""The checks of quantized matrices, on the host."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.kernels import quantized as gpu_quantized
from benchmarks.gpu.kernels.quantized import KINDS, ROWS, quantized_products, quantized_speed
from sglang_plug.contracts.model.kernels import TORCH


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_quantized, "SIZES", gpu_quantized.SIZES[:4])


def test_products_are_right() -> None:
    worst = quantized_products("cpu")
    assert len(worst) == 3 * len(KINDS) and all(0 < error < 2e-2 for error in worst.values())


def test_a_wrong_product_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> object:
        return lambda x: torch.ones(len(x), 64, dtype=x.dtype)

    monkeypatch.setattr(gpu_quantized, "pack_quantized", wrong)
    with pytest.raises(AssertionError, match=r"4 in torch.float32 of \(64, 128, 32\), 1 rows: relative error"):
        quantized_products("cpu")


def test_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_quantized, "ROWS", ROWS[:1])
    monkeypatch.setattr(gpu_quantized, "ceilings", lambda device: {"copy_bandwidth": 1e9})
    result = quantized_speed("cpu", "tiny")
    assert len(result) == 2 * len(KINDS)
    assert all(item["seconds"] > 0 and item["times_as_fast"] > 0 for item in result.values())


def test_the_kernel_set_is_that_of_the_device() -> None:
    assert gpu_quantized.kernels_of("cpu") is TORCH
    pytest.importorskip("triton", reason="Triton is not installed")
    assert gpu_quantized.kernels_of("cuda").name == "triton"
