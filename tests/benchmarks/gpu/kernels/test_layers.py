"""Steps with and without overlapping launches are compared, on the host, where they are the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.common.models import SHAPES, Shape
from benchmarks.gpu.kernels.layers import launches, layers, served
from sglang_plug import AttentionBackend, Kernels
from sglang_plug.contracts.model.kernels import rms_norm

TINY = SHAPES["tiny"]


def test_equal_steps_pass() -> None:
    assert launches("cpu", shape=TINY, replays=3, steps=2) == {"the definition": 5}


@pytest.mark.parametrize("where", ["one", "both"])
@torch.inference_mode()
def test_a_difference_is_found_and_so_is_what_is_no_number(where: str) -> None:
    def spoiled(shape: Shape, device: str, overlap: bool) -> tuple[AttentionBackend, Kernels]:
        def wrong(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
            result = rms_norm(x, weight, epsilon)
            if where == "both":
                result.fill_(float("nan"))
            elif overlap:
                result[:, 0] += 1
            return result

        backend, _ = served(shape, device, overlap)
        return backend, Kernels(rms_norm=wrong)

    with pytest.raises(AssertionError, match="3 of 3 differ where launches overlap"):
        launches("cpu", shape=TINY, replays=3, steps=2, environment=spoiled)


def test_a_layers_time_and_its_share_of_the_limit() -> None:
    times = iter([2.0, 1.0])
    result = layers("cpu", "tiny", seconds_of=lambda action, device: next(times))["tiny"]
    assert result["layers"] == 2 and result["speedup"] == 2.0
    assert (result["apart_layer_seconds"], result["overlapping_layer_seconds"]) == (1.0, 0.5)
    assert result["overlapping_share_of_limit"] == 2 * result["apart_share_of_limit"] > 0
