"""The compiled kernels equal their definitions, for every tile shape and batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, SamplingParams
from sglang_plug.contracts.model import kernels as definitions
from sglang_plug.ops import sampling as sampling_definitions
from sglang_plug.ops.sampling import SamplingOptions
from sglang_plug.testing import check_sampling
from sglang_plug_backends.avx512 import kernels

pytestmark = pytest.mark.usefixtures("compiled")
ROUNDED = {"atol": 1e-2, "rtol": 1e-2}
"""bfloat16 has 8 significant bits."""


@pytest.fixture
def built() -> Kernels:
    return kernels.build()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def bfloat16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def shapes() -> Iterator[tuple[int, int, int]]:
    """Yield rows, outputs and inputs for each tile height, several tiles, blocks that fit into the cache, and odd
    widths."""
    yield from ((rows, 64, 48) for rows in range(1, 14))
    yield from ((rows, 33, 18) for rows in (1, 2, 25))
    yield from ((rows, 1600, 900) for rows in (1, 12, 40, 100, 130))
    yield from ((3, 1, 2), (0, 32, 32), (2, 31, 64), (97, 16, 34))


@pytest.mark.parametrize(("rows", "size_out", "size_in"), list(shapes()))
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear(built: Kernels, rows: int, size_out: int, size_in: int, with_bias: bool) -> None:
    weight, x = bfloat16(size_out, size_in) * size_in**-0.5, bfloat16(rows, size_in)
    bias = bfloat16(size_out) if with_bias else None
    result = built.pack_linear(weight, bias)(x)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert result.dtype == torch.bfloat16 and result.shape == (rows, size_out)
    torch.testing.assert_close(result.double(), expected, **ROUNDED)


@pytest.mark.parametrize("width", [16, 48, 400, 20])
@pytest.mark.parametrize("rows", [1, 11, 30, 120])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gated(built: Kernels, rows: int, width: int, with_bias: bool) -> None:
    assert built.pack_gated is not None
    weight, x = bfloat16(2 * width, 96) * 0.2, bfloat16(rows, 96)
    bias = bfloat16(2 * width) if with_bias else None
    result = built.pack_gated(weight, bias)(x)
    both = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(result.double(), F.silu(both[:, :width]) * both[:, width:], atol=2e-2, rtol=2e-2)


def test_a_row_does_not_depend_on_the_others(built: Kernels) -> None:
    multiply, x = built.pack_linear(bfloat16(96, 512), bfloat16(96)), bfloat16(150, 512)
    together = multiply(x)
    for count in (1, 5, 12, 13, 40, 149):
        assert torch.equal(multiply(x[:count]), together[:count])


def test_the_weight_may_go(built: Kernels) -> None:
    weight, x = bfloat16(64, 64), bfloat16(2, 64)
    multiply = built.pack_linear(weight, None)
    before = multiply(x)
    weight.zero_()
    assert torch.equal(multiply(x), before) and before.any()


def test_pieces_of_memory_do_not_overlap(built: Kernels) -> None:
    weights = [bfloat16(40 + index, 30) for index in range(20)]
    packed = [built.pack_linear(weight, None) for weight in weights]
    x = bfloat16(3, 30)
    for weight, multiply in zip(weights, packed, strict=True):
        torch.testing.assert_close(multiply(x).double(), F.linear(x.double(), weight.double()), **ROUNDED)


def test_rows_of_a_larger_tensor(built: Kernels) -> None:
    weight, wide = bfloat16(32, 16), bfloat16(5, 48)
    result = built.pack_linear(weight, None)(wide[:, 16:32])
    assert torch.equal(result, built.pack_linear(weight, None)(wide[:, 16:32].contiguous()))


@pytest.mark.parametrize("size_in", [64, 7])
def test_other_dtypes_and_odd_sizes_are_left_to_torch(built: Kernels, size_in: int) -> None:
    dtype = torch.float32 if size_in == 64 else torch.bfloat16
    weight, x = torch.randn(8, size_in).to(dtype), torch.randn(3, size_in).to(dtype)
    assert torch.equal(built.pack_linear(weight, None)(x), F.linear(x, weight))
    assert built.pack_gated is not None
    torch.testing.assert_close(built.pack_gated(weight, None)(x), definitions.silu_mul(F.linear(x, weight)))
    for item in (built.rms_norm(x.float(), torch.ones(size_in), 1e-6), built.silu_mul(torch.randn(3, 8))):
        assert item.dtype == torch.float32


@pytest.mark.parametrize(("rows", "width"), [(1, 896), (5, 50), (3, 16), (40, 300), (2, 7)])
@pytest.mark.parametrize("wide_weight", [False, True])
def test_norms(built: Kernels, rows: int, width: int, wide_weight: bool) -> None:
    x, residual, weight = bfloat16(rows, width), bfloat16(rows, width), bfloat16(width)
    weight = torch.randn(width) if wide_weight else weight
    wide = x.double(), weight.double()
    torch.testing.assert_close(built.rms_norm(x, weight, 1e-6).double(), definitions.rms_norm(*wide, 1e-6), **ROUNDED)
    total = x + residual
    normed, summed = built.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(summed, total)
    expected = definitions.rms_norm(total.double(), weight.double(), 1e-6)
    torch.testing.assert_close(normed.double(), expected, **ROUNDED)


def test_norm_of_heads(built: Kernels) -> None:
    packed, weight = bfloat16(6, 4, 32), bfloat16(32)
    x = packed[:, 1:3]
    result = built.rms_norm(x, weight, 1e-6)
    assert result.shape == x.shape
    torch.testing.assert_close(result.double(), definitions.rms_norm(x.double(), weight.double(), 1e-6), **ROUNDED)


@pytest.mark.parametrize(("rows", "width"), [(1, 4864), (7, 24), (300, 40)])
def test_silu_mul(built: Kernels, rows: int, width: int) -> None:
    x = bfloat16(rows, 2 * width) * 20  # large enough to reach both limits of the exponential
    before = x.clone()
    torch.testing.assert_close(built.silu_mul(x).double(), definitions.silu_mul(x.double()), **ROUNDED)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("dim", "width"), [(64, 64), (64, 32), (40, 24), (128, 128)])
@pytest.mark.parametrize("tokens", [1, 200])
def test_rope(built: Kernels, dim: int, width: int, tokens: int) -> None:
    x = bfloat16(tokens, 5, dim)[:, 1:4]
    cos, sin = bfloat16(tokens, width), bfloat16(tokens, width)
    result = built.apply_rope(x, cos, sin)
    torch.testing.assert_close(
        result.double(), definitions.apply_rope(x.double(), cos.double(), sin.double()), **ROUNDED
    )


@pytest.mark.parametrize("words", [1, 64, 65, 300])
@pytest.mark.parametrize("short", [0, 1, 16, 17, -40])
@pytest.mark.parametrize("indices", [None, [2, 0]])
def test_mask_logits(built: Kernels, words: int, short: int, indices: list[int] | None) -> None:
    """The number of logits may end within a word of the mask, or be smaller than the mask."""
    logits = torch.randn(3, 32 * words - short)
    count = 3 if indices is None else len(indices)
    mask = torch.randint(-(1 << 31), 1 << 31, (count, words)).to(torch.int32)
    mask[0, 0], mask[-1, -1] = -1, 0
    rows = None if indices is None else torch.tensor(indices)
    expected = sampling_definitions.mask_logits(logits.clone(), rows, mask)
    result = built.mask_logits(logits, rows, mask)
    assert torch.equal(result, expected)
    assert expected.isinf().any() and expected.isfinite().any()


def test_sampling_kernels_match_the_definition(built: Kernels) -> None:
    check_sampling(built, width=70, draws=64)


@pytest.mark.parametrize("width", [1, 15, 2048, 2049, 40_000])
def test_samples_equal_the_definition(built: Kernels, width: int) -> None:
    """Tokens are equal except where a random number lies at the boundary between two tokens."""
    logits = torch.randn(40, width) * 3
    logits[:, 1::3] = -torch.inf
    options = SamplingOptions.of(
        [SamplingParams(temperature=0.2 + row / 20) for row in range(40)], width, lambda item: item
    )
    uniform = torch.rand(40, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2**-53
    actual, expected = (
        item(logits, options, uniform) for item in (built.sample_tokens, sampling_definitions.sample_tokens)
    )
    assert (actual == expected).sum() >= 39
    assert logits.gather(1, actual[:, None]).isfinite().all()
