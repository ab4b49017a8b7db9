"""The checks of recurrent layers, on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu.kernels.recurrent import recurrent, recurrent_speed
from sglang_plug import Kernels
from sglang_plug.testing.model.recurrence import KERNELS, SIZES


def test_kernels_are_right() -> None:
    worst = recurrent("cpu", large=())
    assert len(worst) == 2 * len(KERNELS) and not any(worst.values()), "the definitions against themselves"


def test_a_wrong_kernel_is_named() -> None:
    def wrong(*arguments: Any) -> torch.Tensor:
        return torch.zeros_like(arguments[2])

    with pytest.raises(AssertionError, match=r"gated_delta_rule in torch.float32 .*, \[1\] tokens: relative error"):
        recurrent("cpu", large=(), kernels=Kernels(gated_delta_rule=wrong))


def test_speed() -> None:
    result = recurrent_speed("cpu", sizes=SIZES[0], crowds=(2,), prompts=(16,))
    assert len(result) == 2 * len(KERNELS)
    assert all(item["seconds"] > 0 and item["times_as_fast"] > 0 for item in result.values())
