"""The checks of recurrent layers, on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import gpu_recurrent
from benchmarks.gpu_recurrent import recurrent, recurrent_speed
from sglang_plug import Kernels
from sglang_plug.testing.recurrence import KERNELS, SIZES


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
    found = recurrent_speed("cpu")
    assert len(found) == 2 * len(KERNELS)
    assert all(one["seconds"] > 0 and one["times_as_fast"] > 0 for one in found.values())
