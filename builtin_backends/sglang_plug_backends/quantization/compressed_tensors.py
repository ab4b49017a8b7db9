"""Reader of compressed-tensors checkpoints (llm-compressor) with integer weights of four or eight bits.

A layer has ``weight_packed`` ``[out, in * bits / 32]``, words with the values of one output's neighbouring inputs, or
``weight`` ``[out, in]`` int8; ``weight_scale`` ``[out, groups]``; if it is not symmetric ``weight_zero_point``, packed
along outputs or int8 as the weight is; and ``weight_g_idx`` ``[in]`` if columns are grouped in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sglang_plug import (
    ConfigError,
    LinearFunction,
    LinearScheme,
    Matrix,
    Quantization,
    QuantizationRequest,
    StoredTensor,
)

from .grouped import Piece, dense, make_pieces, pack_pieces
from .int8 import MAX_COLUMNS, pack_int8
from .packing import codes_of
from .selection import Selection, names_in, refuse_unless, targets_in

PACKED, PLAIN = "pack-quantized", "int-quantized"
WORD = 32
SIGN = 128
"""Bit that converts an int8 to an unsigned value."""
WITHOUT = (".weight_shape", ".input_scale", ".input_zero_point", ".output_scale")
"""Suffixes of ignored tensors: known shapes, and scales of activations, which stay in their dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The settings of ``quantization_config``."""

    bits: int
    packed: bool
    strategy: str
    """One of ``group``, ``channel`` and ``tensor``."""
    group_size: int
    symmetric: bool
    ordered: bool
    """True if groups are contiguous; otherwise ``weight_g_idx`` assigns columns to groups."""
    selection: Selection

    def group(self, columns: int) -> int:
        """Return the group size for a matrix of this many columns."""
        return self.group_size if self.strategy == "group" else columns


def build(request: QuantizationRequest, settings: object) -> Quantization:
    """Build the reader. Raises ``ConfigError`` for another format or unsupported features."""
    layout = read(request.stored or {})
    return Quantization(
        name="compressed-tensors",
        scheme=lambda matrix: _scheme(matrix, layout, request) if layout.selection.holds(matrix) else None,
        is_ignored=lambda name, tensor: name.endswith(WITHOUT),
    )


def read(config: Mapping[str, Any]) -> Layout:
    """Parse ``quantization_config``. Raises ``ConfigError`` that names unsupported settings."""
    method = config.get("quant_method")
    if method != "compressed-tensors":
        raise ConfigError(
            f"--quantization compressed-tensors reads checkpoints whose quant_method is that, and not {method!r}"
        )
    scheme = "compressed-tensors"
    refuse_unless(config.get("format") in (PACKED, PLAIN), config, "format", scheme)
    group = only_group(config)
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    refuse = partial(refuse_unless, config=weights, scheme=scheme)
    packed, strategy = config["format"] == PACKED, weights.get("strategy")
    refuse(weights.get("type", "int") == "int", key="type")
    refuse(weights.get("num_bits") in ((4, 8) if packed else (8,)), key="num_bits")
    refuse(strategy in ("group", "channel", "tensor"), key="strategy")
    refuse(strategy != "group" or (weights.get("group_size") or 0) > 0, key="group_size")
    refuse(not weights.get("dynamic"), key="dynamic")
    refuse(weights.get("actorder") in (None, False, "group", "weight", "static", "dynamic"), key="actorder")
    if activations:
        refuse_unless(activations.get("type", "int") == "int", activations, "type", scheme)
        refuse_unless(activations.get("num_bits") == 8, activations, "num_bits", scheme)
    return Layout(
        bits=weights["num_bits"],
        packed=packed,
        strategy=weights["strategy"],
        group_size=weights.get("group_size") or 0,
        symmetric=weights.get("symmetric", True) is True,
        ordered=weights.get("actorder") not in ("group", "dynamic"),
        selection=Selection(ignored=names_in(config, "ignore"), targets=targets_in(group, scheme)),
    )


def only_group(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the only one of ``config_groups``. Raises ``ConfigError`` if there are more, or none."""
    groups = list((config.get("config_groups") or {}).values())
    if len(groups) != 1 or not isinstance(groups[0], Mapping):
        raise ConfigError(f"the checkpoint has {len(groups)} config_groups; checkpoints with one are supported")
    return groups[0]


def _scheme(matrix: Matrix, layout: Layout, request: QuantizationRequest) -> LinearScheme:
    size_in, size_out, group = matrix.size_in, matrix.size_out, layout.group(matrix.size_in)
    each = WORD // layout.bits if layout.packed else 1
    for multiple in (group, each):
        if size_in % multiple:
            raise ConfigError(f"{matrix.name!r} has {size_in} columns: they must be a multiple of {multiple}")
    groups, dtype = size_in // group, torch.int32 if layout.packed else torch.int8
    one_scale = layout.strategy == "tensor"
    stored = {
        "weight_packed" if layout.packed else "weight": StoredTensor(
            shape=(size_out, size_in // each), dtype=dtype, inner=1, columns=each
        ),
        "weight_scale": StoredTensor(
            shape=(size_out, groups), dtype=torch.float32, one_per_part=one_scale, inner=1, columns=group
        ),
    }
    if not layout.symmetric:
        rows = matrix.row_block_count(each)
        stored["weight_zero_point"] = StoredTensor(
            shape=(rows, groups),
            dtype=dtype,
            rows=each,
            one_per_part=one_scale and not layout.packed,
            inner=1,
            columns=group,
        )
    if not layout.ordered:
        stored["weight_g_idx"] = StoredTensor(shape=(len(matrix.parts), size_in), dtype=torch.int32, axis=None)
    pieces = partial(_pieces, matrix=matrix, layout=layout)

    def pack(held: Mapping[str, Tensor], bias: Tensor | None) -> LinearFunction:
        if layout.packed or not layout.symmetric or groups > 1:
            return pack_pieces(pieces(held), bias, matrix.dtype, request.kernels)
        return _pack_rows(held["weight"], held["weight_scale"].flatten(), bias, matrix, request)

    return LinearScheme(pack=pack, dense=lambda held: dense(pieces(held), matrix.dtype), stored=stored)


def _pack_rows(
    weight: Tensor, scale: Tensor, bias: Tensor | None, matrix: Matrix, request: QuantizationRequest
) -> LinearFunction:
    """Pack weights with one scale per row and no zero like ``int8`` does, if the kernel set multiplies these."""
    own = request.kernels.pack_int8 if matrix.dtype == torch.bfloat16 else None
    if own is not None and matrix.size_in <= MAX_COLUMNS:
        return own(weight, scale, bias)
    if request.device.type == "cpu":
        return pack_int8(weight, scale.to(matrix.dtype), bias)
    zero = torch.full((len(weight), 1), SIGN, dtype=torch.uint8, device=weight.device)
    return pack_pieces(
        make_pieces(_without_sign(weight), scale[:, None], zero, group=matrix.size_in),
        bias,
        matrix.dtype,
        request.kernels,
    )


def _pieces(held: Mapping[str, Tensor], *, matrix: Matrix, layout: Layout) -> list[Piece]:
    scale, zero = held["weight_scale"], held.get("weight_zero_point")
    if layout.packed:
        codes = codes_of(held["weight_packed"], layout.bits)
        zero = None if zero is None else _zeros(zero, matrix, layout.bits)
    else:
        codes = _without_sign(held["weight"])
        zero = None if zero is None else _without_sign(zero)
    if zero is None:
        zero = torch.full(scale.shape, 1 << (layout.bits - 1), dtype=torch.uint8, device=scale.device)
    return make_pieces(
        codes,
        scale,
        zero,
        group=layout.group(matrix.size_in),
        groups=held.get("weight_g_idx"),
        parts=matrix.parts,
    )


def _zeros(words: Tensor, matrix: Matrix, bits: int) -> Tensor:
    """Unpack zeros ``[out, groups]`` from words along the outputs, for each part separately."""
    each, zeros, start = WORD // bits, [], 0
    for size in matrix.parts:
        own = words[start : start + -(-size // each)]
        zeros.append(codes_of(own.t(), bits)[:, :size].t())
        start += len(own)
    return torch.cat(zeros)


def _without_sign(whole: Tensor) -> Tensor:
    """Convert int8 to uint8 with 128 for 0."""
    return whole.view(torch.uint8) ^ SIGN
