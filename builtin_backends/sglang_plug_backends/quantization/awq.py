"""Reader of AWQ checkpoints (Lin et al., 2023) in AutoAWQ's ``gemm`` format.

A layer has ``qweight`` ``[in, out / 8]``, words with the quantized values of eight neighbouring outputs in a special
order; ``qzeros`` ``[groups, out / 8]`` likewise, and ``scales`` ``[groups, out]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sglang_plug import ConfigError, LinearScheme, Matrix, Quantization, QuantizationRequest, StoredTensor

from .grouped import Piece, dense, make_pieces, pack_pieces
from .packing import codes_of
from .selection import Selection, names_in, refuse_unless

BITS = 4
EACH = 8
"""Quantized values per word."""
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in a word of each of eight outputs, counted from the lowest bits."""


def build(request: QuantizationRequest, settings: object) -> Quantization:
    """Build the reader. Raises ``ConfigError`` for another format or unsupported features."""
    group_size, selection = read(request.stored or {})
    return Quantization(
        name="awq",
        scheme=lambda matrix: _scheme(matrix, group_size, request) if selection.holds(matrix) else None,
        is_ignored=lambda name, tensor: name.endswith(".bias") and not bool(tensor.any()),
    )


def read(config: Mapping[str, Any]) -> tuple[int, Selection]:
    """Return the group size (-1: all columns) and the quantized matrices.

    Raises ``ConfigError`` that names unsupported settings.
    """
    method = config.get("quant_method")
    if method != "awq":
        raise ConfigError(f"--quantization awq reads checkpoints whose quant_method is 'awq', and not {method!r}")
    refuse = partial(refuse_unless, config=config, scheme="AWQ")
    bits, group_size = ("w_bit", "q_group_size") if "w_bit" in config else ("bits", "group_size")
    size = config.get(group_size, 128)
    refuse(config.get(bits) == BITS, key=bits)
    refuse(isinstance(size, int) and (size == -1 or size > 0), key=group_size)
    refuse(str(config.get("version") or "gemm").lower() == "gemm", key="version")
    refuse(config.get("zero_point", True) is True, key="zero_point")
    ignored = names_in(config, "modules_to_not_convert")
    return size, Selection(ignored=ignored, head=False, router=False, anywhere=True)


def _scheme(matrix: Matrix, group_size: int, request: QuantizationRequest) -> LinearScheme:
    size_in, size_out = matrix.size_in, matrix.size_out
    group = size_in if group_size == -1 else group_size
    for size, multiple, side in ((size_in, group, "columns"), *((size, EACH, "rows") for size in matrix.parts)):
        if size % multiple:
            raise ConfigError(f"{matrix.name!r} has {size} {side}: in AWQ they must be a multiple of {multiple}")
    groups, words = size_in // group, matrix.row_block_count(EACH)
    pieces = partial(_pieces, group=group)
    return LinearScheme(
        pack=lambda held, bias: pack_pieces(pieces(held), bias, matrix.dtype, request.kernels),
        dense=lambda held: dense(pieces(held), matrix.dtype),
        stored={
            "qweight": StoredTensor(shape=(size_in, words), dtype=torch.int32, axis=1, rows=EACH, inner=0),
            "qzeros": StoredTensor(shape=(groups, words), dtype=torch.int32, axis=1, rows=EACH, inner=0, columns=group),
            "scales": StoredTensor(shape=(groups, size_out), dtype=torch.float32, axis=1, inner=0, columns=group),
        },
    )


def _pieces(held: Mapping[str, Tensor], *, group: int) -> list[Piece]:
    codes, zero = (_in_order(codes_of(held[name], BITS)) for name in ("qweight", "qzeros"))
    return make_pieces(codes.t(), held["scales"].t(), zero.t(), group=group)


def _in_order(codes: Tensor) -> Tensor:
    """Reorder each eight outputs to their natural order."""
    return codes.view(len(codes), -1, EACH)[..., list(ORDER)].flatten(1)
