"""The checks of matrices in codes, on the host."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_coded
from benchmarks.gpu_coded import KINDS, ROWS, coded, coded_speed
from sglang_plug.kernels import TORCH


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_coded, "SIZES", gpu_coded.SIZES[:4])


def test_products_are_right() -> None:
    worst = coded("cpu")
    assert len(worst) == 3 * len(KINDS) and all(0 < error < 2e-2 for error in worst.values())


def test_a_wrong_product_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> object:
        return lambda x: torch.ones(len(x), 64, dtype=x.dtype)

    monkeypatch.setattr(gpu_coded, "pack_coded", wrong)
    with pytest.raises(AssertionError, match=r"4 in torch.float32 of \(64, 128, 32\), 1 rows: relative error"):
        coded("cpu")


def test_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_coded, "ROWS", ROWS[:1])
    monkeypatch.setattr(gpu_coded, "ceilings", lambda device: {"copy_bandwidth": 1e9})
    found = coded_speed("cpu", "tiny")
    assert len(found) == 2 * len(KINDS)
    assert all(one["seconds"] > 0 and one["times_as_fast"] > 0 for one in found.values())


def test_the_kernel_set_is_that_of_the_device() -> None:
    assert gpu_coded.kernels_of("cpu") is TORCH
    pytest.importorskip("triton", reason="Triton is not installed")
    assert gpu_coded.kernels_of("cuda").name == "triton"
