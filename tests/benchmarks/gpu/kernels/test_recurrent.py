"""The checks of recurrent layers, on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu.kernels import recurrent as gpu_recurrent
from benchmarks.gpu.kernels.recurrent import recurrent, recurrent_speed
from sglang_plug import Kernels
from sglang_plug.testing.model.recurrence import KERNELS, SIZES


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_recurrent, "LARGE", [])
    monkeypatch.setattr(gpu_recurrent, "QWEN_NEXT", SIZES[0])


def test_kernels_are_right() -> None:
    worst = recurrent("cpu")
    assert len(worst) == 2 * len(KERNELS) and not any(worst.values()), "the definitions against themselves"


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> torch.Tensor:
        return torch.zeros_like(arguments[2])

    monkeypatch.setattr(gpu_recurrent, "kernels_of", lambda device: Kernels(gated_delta_rule=wrong))
    with pytest.raises(AssertionError, match=r"gated_delta_rule in torch.float32 .*, \[1\] tokens: relative error"):
        recurrent("cpu")


def test_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_recurrent, "CROWDS", (2,))
    monkeypatch.setattr(gpu_recurrent, "PROMPTS", (16,))
    monkeypatch.setattr(gpu_recurrent, "ceilings", lambda device: {"copy_bandwidth": 1e9})
    result = recurrent_speed("cpu")
    assert len(result) == 2 * len(KERNELS)
    assert all(item["seconds"] > 0 and item["times_as_fast"] > 0 for item in result.values())
