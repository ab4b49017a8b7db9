"""Recurrent layers by the compiled kernels equal their definitions, for any widths, and however sequences are cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, Runs, scanning
from sglang_plug_backends.avx512 import kernels

pytestmark = pytest.mark.usefixtures("compiled")
CPU = torch.device("cpu")
LENGTHS = [[1], [1, 1, 1], [70], [1, 5, 1, 130]]
SHAPES = [(2, 4, 16, 16), (1, 3, 8, 20), (4, 4, 128, 128), (2, 2, 30, 200), (1, 2, 96, 48)]
"""Key heads, heads, width of keys and of values."""


@pytest.fixture
def built() -> Kernels:
    return kernels.build()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def runs(lengths: list[int]) -> Runs:
    return Runs.of(list(range(2, 2 + len(lengths)))[::-1], lengths, CPU)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    rounded = {"atol": 2e-2, "rtol": 2e-2} if found.dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(found, expected, **rounded)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("channels", "width"), [(16, 4), (100, 4), (33, 2), (64, 8)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_convolution(built: Kernels, lengths: list[int], channels: int, width: int, with_bias: bool) -> None:
    wide = torch.randn(sum(lengths), 2 * channels).bfloat16()
    x, weight = wide[:, channels:], torch.randn(channels, width).bfloat16()
    bias = torch.randn(channels).bfloat16() if with_bias else None
    states = torch.randn(8, width - 1, channels).bfloat16()
    others = states.clone()
    expected = scanning.causal_conv(x, weight, bias, others, runs(lengths))
    close(built.causal_conv(x, weight, bias, states, runs(lengths)), expected)
    assert torch.equal(states, others), "the last inputs, as they are"


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)], ids=str)
def test_recurrence(
    built: Kernels,
    lengths: list[int],
    shape: tuple[int, int, int, int],
    delta: bool,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    key_heads, heads, dim, value_dim = shape
    tokens = sum(lengths)
    mixed = torch.randn(tokens, 2 * key_heads * dim).to(dtypes[0])
    q, k = (part.view(tokens, key_heads, dim) * dim**-0.5 for part in mixed.chunk(2, -1))
    v = torch.randn(tokens, heads, value_dim).to(dtypes[1])
    decay = -torch.rand(tokens, heads) * 2
    states = torch.randn(8, heads, dim, value_dim)
    others = states.clone()
    rate = (torch.rand(tokens, heads).to(dtypes[1]),) if delta else ()
    mine, definition = (
        (built.gated_delta_rule, scanning.gated_delta_rule)
        if delta
        else (built.linear_attention, scanning.linear_attention)
    )
    expected = definition(q, k, v, decay, *rate, others, runs(lengths))  # type: ignore[operator]
    close(mine(q, k, v, decay, *rate, states, runs(lengths)), expected)  # type: ignore[operator]
    close(states, others)


def test_queries_and_keys_may_lie_in_a_wider_tensor(built: Kernels) -> None:
    mixed = torch.randn(5, 3 * 64).bfloat16()
    q, k, v = (part.unflatten(-1, (2, 32)) for part in mixed.chunk(3, -1))  # type: ignore[no-untyped-call]
    decay, states = -torch.rand(5, 2), torch.randn(4, 2, 32, 32)
    others = states.clone()
    expected = scanning.linear_attention(q, k, v, decay, others, runs([5]))
    close(built.linear_attention(q, k, v, decay, states, runs([5])), expected)


def test_what_the_kernels_do_not_know_is_left_to_the_definitions(built: Kernels) -> None:
    """Decay of each channel of a key; taps of more tokens than registers hold; half precision."""
    x, weight, states = torch.randn(4, 16).bfloat16(), torch.randn(16, 12).bfloat16(), torch.randn(4, 11, 16).bfloat16()
    others = states.clone()
    expected = scanning.causal_conv(x, weight, None, others, runs([4]))
    assert torch.equal(built.causal_conv(x, weight, None, states, runs([4])), expected)
    q, v = torch.randn(4, 2, 16).half(), F.normalize(torch.randn(4, 2, 16)).half()
    decay, memory = -torch.rand(4, 2), torch.randn(4, 2, 16, 16)
    other = memory.clone()
    expected = scanning.linear_attention(q, q, v, decay, other, runs([4]))
    assert torch.equal(built.linear_attention(q, q, v, decay, memory, runs([4])), expected)
