"""Grouped integer weights, with scales, zero points and any order of columns, are packed and multiplied."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sglang_plug import ConfigError
from sglang_plug.contracts.model.kernels import TORCH, LinearFunction
from sglang_plug.ops.quantized_weight import QuantizedWeight
from sglang_plug_backends.quantization.grouped import Piece, dense, make_pieces, pack_pieces
from sglang_plug_backends.quantization.matmul import pack_chunks, pack_quantized
from sglang_plug_backends.quantization.packing import codes_of, packed_codes, smallest
from tests.builtin_backends.quantized_weights import SIZES, random_weight
from tests.core.contracts.model.test_quantization import Live
from tests.quantized import words


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantized_values_are_unpacked_from_words(bits: int) -> None:
    torch.manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (5, 64))
    assert torch.equal(codes_of(words(codes.T, bits).T, bits).long(), codes)


def test_two_quantized_values_are_packed_in_a_byte() -> None:
    codes = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert packed_codes(codes, 4).tolist() == [[0x21, 0x0F]]
    assert torch.equal(packed_codes(codes, 8), codes)
    assert packed_codes(torch.zeros(4, 2, dtype=torch.uint8).T, 4).is_contiguous()


def test_scales_take_no_more_room_than_they_need() -> None:
    assert smallest(torch.tensor([0.1]).half().float()).dtype == torch.float16
    assert smallest(torch.tensor([1e-7, 1e30]).bfloat16().float()).dtype == torch.bfloat16
    assert smallest(torch.tensor([0.1])).dtype == torch.float32


def random_codes(rows: int, columns: int, groups: int, levels: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    codes, zero = (torch.randint(0, levels, (rows, size), dtype=torch.uint8) for size in (columns, groups))
    return codes, torch.rand(rows, groups) + 0.5, zero


def expected(codes: Tensor, scale: Tensor, zero: Tensor, index: Tensor) -> Tensor:
    return (codes.float() - zero.float()[:, index]) * scale[:, index]


@pytest.mark.parametrize("levels", [16, 256])
def test_parts_in_an_order_of_their_own(levels: int) -> None:
    codes, scale, zero = random_codes(24, 32, 4, levels)
    orders = torch.stack([(torch.arange(32) // 8)[torch.randperm(32)] for _ in range(2)])
    exact = torch.cat(
        [
            expected(*(tensor[rows] for tensor in (codes, scale, zero)), order)
            for rows, order in zip((slice(0, 10), slice(10, 24)), orders, strict=True)
        ]
    )
    pieces = make_pieces(codes, scale, zero, group=8, groups=orders, parts=(10, 14))
    assert [piece.weight.shape for piece in pieces] == [(10, 32), (14, 32)]
    assert {piece.weight.bits for piece in pieces} == {4 if levels == 16 else 8}
    assert torch.equal(dense(pieces, torch.float32), exact)
    x, bias = torch.randn(3, 32), torch.randn(24)
    for offset in (None, bias):
        result = pack_pieces(pieces, offset, torch.float32, TORCH)(x)
        torch.testing.assert_close(result, x @ exact.T + (0 if offset is None else offset), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("same", [True, False])
def test_one_order_of_all_parts_is_one_piece(same: bool) -> None:
    codes, scale, zero = random_codes(16, 24, 3)
    order = (torch.arange(24) // 8)[torch.randperm(24)] if same else torch.arange(24) // 8
    (piece,) = make_pieces(codes, scale, zero, group=8, groups=order.repeat(2, 1), parts=(8, 8))
    assert (piece.order is not None) == same
    assert torch.equal(dense([piece], torch.float32), expected(codes, scale, zero, order))


def test_groups_of_other_sizes_are_refused() -> None:
    order = torch.tensor([[0] * 5 + [1] * 3])
    with pytest.raises(ConfigError, match=r"groups of columns \(g_idx\) are not all of group_size 4"):
        make_pieces(*random_codes(8, 8, 2), group=4, groups=order, parts=(8,))


def relative(actual: Tensor, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> float:
    exact = x.double() @ weight.dense(torch.float64).T + (0 if bias is None else bias.double())
    return float((actual.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", ["4", "8", "e4m3"])
@pytest.mark.parametrize(("size_out", "size_in", "group"), [*SIZES, (96, 512, 512), (48, 768, 384)])
def test_products(kind: str, size_out: int, size_in: int, group: int) -> None:
    weight = random_weight(kind, size_out, size_in, group)
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        bias = torch.randn(size_out).to(dtype)
        for rows, offset in ((1, None), (1, bias), (20, bias)):
            x = torch.randn(rows, size_in).to(dtype)
            result = pack_quantized(weight, offset, dtype, TORCH)(x)
            assert result.dtype == dtype and relative(result, x, weight, offset) < bound


def test_large_matrices_are_taken_apart() -> None:
    weight, x, bias = random_weight("4", 33, 64, 32), torch.randn(2, 64), torch.randn(33)
    whole = x @ weight.dense(torch.float32).T + bias
    torch.testing.assert_close(pack_chunks(weight, bias, max_numbers=100)(x), whole)


def test_the_kernel_set_multiplies_where_it_can() -> None:
    def doubled(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> LinearFunction | None:
        return None if dtype == torch.float32 else lambda x: 2 * x

    kernels = dataclasses.replace(TORCH, pack_quantized=doubled)
    piece = Piece(weight=random_weight("4", 64, 64, 32), order=torch.arange(64).flip(0))
    x = torch.randn(2, 64)
    assert torch.equal(pack_pieces([piece], None, torch.bfloat16, kernels)(x), 2 * x.flip(1))
    assert pack_pieces([piece], None, torch.float32, kernels)(x).shape == (2, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_four_bits_take_a_quarter_of_the_memory(dtype: torch.dtype) -> None:
    codes, scale, zero = random_codes(1024, 1024, 8)
    with Live() as live:
        pieces = make_pieces(codes.clone(), scale.half().float(), zero.clone(), group=128)
        product = pack_pieces(pieces, None, dtype, TORCH)
        del pieces
        product(torch.randn(1, 1024, dtype=dtype))
    assert live.now < 1024 * 1024 * 2 * 0.28
