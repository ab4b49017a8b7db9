"""Steps with and without overlapping launches are compared, on the host, where they are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.common.models import SHAPES
from benchmarks.gpu.kernels import layers as gpu_layers
from benchmarks.gpu.kernels.layers import Steps, build, launches, layers


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a small model and few rounds, and no ceilings, which take long."""
    monkeypatch.setattr(gpu_layers, "CHECKED", SHAPES["tiny"])
    monkeypatch.setattr(gpu_layers, "REPLAYS", 3)
    monkeypatch.setattr(gpu_layers, "STEPS", 2)
    monkeypatch.setattr(gpu_layers, "ceilings", lambda device: {"copy_bandwidth": 1e9})


def test_equal_steps_pass() -> None:
    assert launches("cpu") == {"the definition": 5}


@pytest.mark.parametrize("where", ["one", "both"])
@torch.inference_mode()
def test_a_difference_is_found_and_so_is_what_is_no_number(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(shape: Any, device: str, overlap: bool, surroundings: Any) -> Steps:
        steps = build(shape, device, overlap, surroundings)
        weights = dict(steps.model.named_parameters())
        weight = next(tensor for name, tensor in weights.items() if name.endswith("norm.weight"))
        if where == "both":
            weight.fill_(float("nan"))
        elif overlap:
            weight[0] += 1
        return steps

    monkeypatch.setattr(gpu_layers, "build", spoiled)
    with pytest.raises(AssertionError, match="3 of 3 differ where launches overlap"):
        launches("cpu")


def test_a_layers_time_and_its_share_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2.0, 1.0])
    monkeypatch.setattr(gpu_layers, "median_seconds", lambda action, device: next(times))
    result = layers("cpu", "tiny")["tiny"]
    assert result["layers"] == 2 and result["speedup"] == 2.0
    assert (result["apart_layer_seconds"], result["overlapping_layer_seconds"]) == (1.0, 0.5)
    assert result["overlapping_share_of_limit"] == 2 * result["apart_share_of_limit"] > 0
