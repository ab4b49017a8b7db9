"""The checks of quantized matrices, on the host."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.kernels.quantized import KINDS, ROWS, SIZES, kernels_of, quantized_products, quantized_speed
from sglang_plug import Kernels, LinearFunction
from sglang_plug.contracts.model.kernels import TORCH

SMALL = SIZES[:4]


def test_products_are_right() -> None:
    worst = quantized_products("cpu", sizes=SMALL)
    assert len(worst) == 3 * len(KINDS) and all(0 < error < 2e-2 for error in worst.values())


def test_a_wrong_product_is_named() -> None:
    def wrong(*arguments: object) -> LinearFunction:
        return lambda x: torch.ones(len(x), 64, dtype=x.dtype)

    with pytest.raises(AssertionError, match=r"4 in torch.float32 of \(64, 128, 32\), 1 rows: relative error"):
        quantized_products("cpu", sizes=SMALL, kernels=Kernels(pack_quantized=wrong))


def test_speed() -> None:
    result = quantized_speed("cpu", "tiny", heights=ROWS[:1])
    assert len(result) == 2 * len(KINDS)
    assert all(item["seconds"] > 0 and item["times_as_fast"] > 0 for item in result.values())


def test_the_kernel_set_is_that_of_the_device() -> None:
    assert kernels_of("cpu") is TORCH
    pytest.importorskip("triton", reason="Triton is not installed")
    assert kernels_of("cuda").name == "triton"
