"""Recurrent layers: interpreted against the definitions, however long the sequences, and compiled for Hopper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import Kernels, SequenceSpans
from sglang_plug.testing import check_recurrence
from sglang_plug.testing.model.recurrence import SIZES, recurrence_cases
from sglang_plug_backends.triton import launch, recurrent

from .compiling import assert_waits_first, assert_waits_first_as_assembled, compile_only

# The interpreter computes with numpy, which warns where a device does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")


@pytest.mark.interpreted
@pytest.mark.parametrize("kernel", ["causal_conv", "linear_attention", "gated_delta_rule", "selective_scan"])
def test_interpreted_kernels(kernel: str) -> None:
    assert launch.INTERPRETED
    calls = []

    def watched(*arguments: Any) -> Any:
        calls.append(arguments)
        return getattr(recurrent, kernel)(*arguments)

    lengths = ((1,), (1, 1, 1), (9, 1, 3), (70, 1, 2))
    cases = [case for case in recurrence_cases(sizes=SIZES[:3], lengths=lengths) if case.kernel == kernel]
    check_recurrence(Kernels(**{kernel: watched}), cases=cases)
    assert len(calls) == len(cases) > 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiled_for_hopper(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shapes are those of Qwen3-Next and of a Mamba model."""
    results = compile_only(monkeypatch, tmp_path, recurrent)
    runs = SequenceSpans.of([2, 3], [1, 1], torch.device("cpu"))
    x = torch.zeros(2, 8192, dtype=dtype)
    recurrent.causal_conv(
        x, torch.zeros(8192, 4, dtype=dtype), None, torch.zeros(4, 3, 8192, dtype=dtype), runs, overlap=True
    )
    q, v = torch.zeros(2, 16, 128, dtype=dtype), torch.zeros(2, 32, 128, dtype=dtype)
    decay, states = torch.zeros(2, 32), torch.zeros(4, 32, 128, 128)
    recurrent.gated_delta_rule(q, q, v, decay, torch.zeros(2, 32, dtype=dtype), states, runs, overlap=True)
    recurrent.linear_attention(q, q, v, decay, states, runs, overlap=True)
    wide = (x, torch.zeros(2, 8192), torch.zeros(8192, 16), x[:, :16], x[:, 16:32], torch.zeros(4, 8192, 16))
    recurrent.selective_scan(*wide, runs, overlap=True)
    names = ["conv_kernel", "conv_state_kernel", "recurrence_kernel", "recurrence_kernel", "selective_scan_kernel"]
    assert [item.metadata.name for item in results] == names
    for result in results:
        assert_waits_first(result)
    assert_waits_first_as_assembled(results[2], tmp_path)
