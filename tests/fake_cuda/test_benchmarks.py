"""Parts of the CUDA benchmark on the fake device: they find the graphs that they compare."""

from __future__ import annotations

import pytest

from benchmarks.common.models import SHAPES
from benchmarks.gpu.adapters import adapter_steps
from benchmarks.gpu.prompts import prompt_steps
from tests.fake_cuda.device.tensors import clock

GRAPHS = SHAPES["tiny"].layers + 1
"""Number of piecewise graphs of a step."""


@pytest.mark.usefixtures("idle_device")
def test_prompts_in_pieces() -> None:
    """Each repetition replays one step of each length; the engine's start replays graphs, too."""

    def replays(repeats: int) -> int:
        clock.executed.clear()
        assert list(prompt_steps("cuda", "triton", "tiny", lengths=(4, 8), repeats=repeats)["tiny"]) == ["4", "8"]
        return clock.executed["graph"]

    assert replays(7) - replays(4) == 3 * 2 * GRAPHS


@pytest.mark.usefixtures("idle_device")
def test_decode_steps_with_adapters() -> None:
    result = adapter_steps("cuda", "tiny", "triton", batches=(1, 2))
    assert list(result) == ["1", "2"]
    assert list(result["1"]) == ["none", "one", "several", "several, without graphs"]
