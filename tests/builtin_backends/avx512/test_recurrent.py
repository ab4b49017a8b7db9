"""Compiled recurrent kernels equal their definitions, for any widths and any division of sequences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, SequenceSpans
from sglang_plug.ops import ssm
from sglang_plug.testing import check_recurrence
from sglang_plug.testing.model.recurrence import recurrence_cases
from sglang_plug_backends.avx512 import kernels

pytestmark = pytest.mark.usefixtures("compiled")
CPU = torch.device("cpu")


@pytest.fixture
def built() -> Kernels:
    return kernels.build()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def runs(lengths: list[int]) -> SequenceSpans:
    return SequenceSpans.of(list(range(2, 2 + len(lengths)))[::-1], lengths, CPU)


def close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    rounded = {"atol": 2e-2, "rtol": 2e-2} if actual.dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(actual, expected, **rounded)


@pytest.mark.parametrize("kernel", ["causal_conv", "linear_attention", "gated_delta_rule", "selective_scan"])
def test_the_backend_passes_the_conformance_tests(built: Kernels, kernel: str) -> None:
    check_recurrence(built, cases=[case for case in recurrence_cases() if case.kernel == kernel])


def test_the_kernels_are_used(built: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the shapes and dtypes of real models."""
    for name in ("causal_conv", "linear_attention", "gated_delta_rule", "selective_scan"):
        monkeypatch.delattr(ssm, name)
    q, v = torch.randn(3, 2, 16).bfloat16(), torch.randn(3, 4, 24)
    decay, states = -torch.rand(3, 4), torch.zeros(4, 4, 16, 24)
    built.linear_attention(q, q, v, decay, states, runs([1, 2]))
    built.gated_delta_rule(q, q, v.bfloat16(), decay, decay.exp().bfloat16(), states, runs([1, 2]))
    x, weight = torch.randn(3, 40).bfloat16(), torch.randn(40, 4).bfloat16()
    built.causal_conv(x, weight, None, torch.zeros(4, 3, 40).bfloat16(), runs([1, 2]))
    step, rates, b = torch.rand(3, 40), -torch.rand(40, 16), torch.randn(3, 16)
    for wide, write in ((x, b.bfloat16()), (x.float(), b)):
        built.selective_scan(wide, step, rates, write, b.bfloat16(), torch.zeros(4, 40, 16), runs([1, 2]))


@pytest.mark.parametrize("lengths", [[1, 1], [5, 1, 70]], ids=str)
def test_convolutions_of_any_width(built: Kernels, lengths: list[int]) -> None:
    """The stored previous inputs are equal to the last bit."""
    for channels, width in ((16, 4), (100, 8), (33, 2)):
        x, weight = torch.randn(sum(lengths), channels).bfloat16(), torch.randn(channels, width).bfloat16()
        states = torch.randn(8, width - 1, channels).bfloat16()
        others = states.clone()
        expected = ssm.causal_conv(x, weight, None, others, runs(lengths))
        close(built.causal_conv(x, weight, None, states, runs(lengths)), expected)
        assert torch.equal(states, others)


def test_queries_and_keys_may_lie_in_a_wider_tensor(built: Kernels) -> None:
    mixed = torch.randn(5, 3 * 64).bfloat16()
    q, k, v = (part.unflatten(-1, (2, 32)) for part in mixed.chunk(3, -1))  # type: ignore[no-untyped-call]
    decay, states = -torch.rand(5, 2), torch.randn(4, 2, 32, 32)
    others = states.clone()
    expected = ssm.linear_attention(q, k, v, decay, others, runs([5]))
    close(built.linear_attention(q, k, v, decay, states, runs([5])), expected)


def test_what_the_kernels_do_not_know_is_left_to_the_definitions(built: Kernels) -> None:
    """Decay for each channel of a key, wide convolutions and half precision are computed by the definitions."""
    x, weight, states = torch.randn(4, 16).bfloat16(), torch.randn(16, 12).bfloat16(), torch.randn(4, 11, 16).bfloat16()
    others = states.clone()
    expected = ssm.causal_conv(x, weight, None, others, runs([4]))
    assert torch.equal(built.causal_conv(x, weight, None, states, runs([4])), expected)
    q, v = torch.randn(4, 2, 16).half(), F.normalize(torch.randn(4, 2, 16)).half()
    decay, memory = -torch.rand(4, 2), torch.randn(4, 2, 16, 16)
    other = memory.clone()
    expected = ssm.linear_attention(q, q, v, decay, other, runs([4]))
    assert torch.equal(built.linear_attention(q, q, v, decay, memory, runs([4])), expected)
