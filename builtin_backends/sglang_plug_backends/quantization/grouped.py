"""Integer matrices with a scale and a zero for each group of columns, whose columns may be permuted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sglang_plug import ConfigError, Kernels, LinearFunction, QuantizedWeight

from .matmul import pack_quantized
from .packing import packed_codes, smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of a matrix."""

    weight: QuantizedWeight
    order: Tensor | None = None
    """Input column of each weight column, ``[in]``; ``None``: the identity."""


def make_pieces(
    codes: Tensor, scale: Tensor, zero: Tensor, *, group: int, groups: Tensor | None = None, parts: Sequence[int] = ()
) -> list[Piece]:
    """Split a matrix into pieces of rows with a common order of columns.

    Args:
        codes: ``[out, in]`` uint8.
        scale: ``[out, groups]``.
        zero: ``[out, groups]`` uint8.
        group: columns of a group.
        groups: the group of each column for each part, ``[parts, in]``; ``None``: they are next to each other.
        parts: rows of each part.

    Raises ``ConfigError`` for groups that differ in size.
    """
    bits: Literal[4, 8] = 4 if max(int(codes.max()), int(zero.max())) < 16 and codes.shape[1] % 2 == 0 else 8
    whole = (codes, smallest(scale), zero)
    if groups is None or not bool((groups != in_order(groups.shape[1], group).to(groups)).any()):
        return [_piece(*whole, bits, group, None)]
    if not bool((groups != groups[0]).any()):
        return [_piece(*whole, bits, group, groups[0])]
    split = zip(*(tensor.split_with_sizes(list(parts)) for tensor in whole), groups, strict=True)
    return [_piece(codes, scale, zero, bits, group, index) for codes, scale, zero, index in split]


def in_order(columns: int, group: int) -> Tensor:
    """Return the group of each column if groups are contiguous, ``[columns]`` int32."""
    return torch.arange(columns, dtype=torch.int32) // group


def pack_pieces(pieces: Sequence[Piece], bias: Tensor | None, dtype: torch.dtype, kernels: Kernels) -> LinearFunction:
    """Concatenate the products of all pieces; inputs are in ``dtype``."""
    if len(pieces) == 1:
        return _pack_piece(pieces[0], bias, dtype, kernels)
    biases = (
        [None] * len(pieces) if bias is None else bias.split_with_sizes([piece.weight.shape[0] for piece in pieces])
    )
    products = [_pack_piece(piece, part, dtype, kernels) for piece, part in zip(pieces, biases, strict=True)]
    return lambda x: torch.cat([product(x) for product in products], dim=-1)


def dense(pieces: Sequence[Piece], dtype: torch.dtype) -> Tensor:
    """Dequantize to the matrix ``[out, in]``."""
    return torch.cat([_in_column_order(piece, piece.weight.dense(dtype)) for piece in pieces])


def _piece(codes: Tensor, scale: Tensor, zero: Tensor, bits: Literal[4, 8], group: int, index: Tensor | None) -> Piece:
    order = None
    if index is not None:
        if not torch.equal(index.sort().values, in_order(len(index), group).to(index)):
            raise ConfigError(f"the checkpoint's groups of columns (g_idx) are not all of group_size {group}")
        order = index.argsort(stable=True)
        codes = codes[:, order]
    packed = packed_codes(codes, bits)
    weight = QuantizedWeight(codes=packed, scale=scale.contiguous(), zero=zero.contiguous(), group=group, bits=bits)
    return Piece(weight=weight, order=order)


def _pack_piece(piece: Piece, bias: Tensor | None, dtype: torch.dtype, kernels: Kernels) -> LinearFunction:
    product, order = pack_quantized(piece.weight, bias, dtype, kernels), piece.order
    return product if order is None else lambda x: product(x.index_select(1, order))


def _in_column_order(piece: Piece, values: Tensor) -> Tensor:
    return values if piece.order is None else torch.empty_like(values).index_copy_(1, piece.order, values)
