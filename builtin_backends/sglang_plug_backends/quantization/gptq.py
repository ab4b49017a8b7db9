"""Reader of GPTQ checkpoints (Frantar et al., 2022) in the format of AutoGPTQ and GPTQModel.

A layer has ``qweight`` ``[in * bits / 32, out]``, words with the values of one output's neighbouring inputs; ``qzeros``
``[groups, out * bits / 32]`` and ``scales`` ``[groups, out]``; and ``g_idx`` ``[in]``, each input's group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sglang_plug import ConfigError, LinearScheme, Matrix, Quantization, QuantizationRequest, StoredTensor

from .grouped import Piece, dense, in_order, make_pieces, pack_pieces
from .packing import codes_of
from .selection import Selection, names_in, refuse_unless

BITS = (2, 4, 8)
WORD = 32
FORMATS = {None: True, "": True, "gptq": True, "gptq_v2": False}
"""True by ``checkpoint_format`` if zeros are stored minus one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The settings of ``quantization_config``."""

    bits: int
    group_size: int
    """Columns of a group; -1: all columns."""
    ordered: bool
    """True if groups are contiguous; otherwise ``g_idx`` assigns columns to groups."""
    less_one: bool
    selection: Selection

    def group(self, columns: int) -> int:
        """Return the group size for a matrix of this many columns."""
        return columns if self.group_size == -1 else self.group_size


def build(request: QuantizationRequest, settings: object) -> Quantization:
    """Build the reader. Raises ``ConfigError`` for another format or unsupported features."""
    layout = read(request.stored or {})
    return Quantization(
        name="gptq",
        scheme=lambda matrix: _scheme(matrix, layout, request) if layout.selection.holds(matrix) else None,
        is_ignored=partial(_is_ignored, layout),
    )


def read(config: Mapping[str, Any]) -> Layout:
    """Parse ``quantization_config``. Raises ``ConfigError`` that names unsupported settings."""
    method = config.get("quant_method")
    if method != "gptq":
        raise ConfigError(f"--quantization gptq reads checkpoints whose quant_method is 'gptq', and not {method!r}")
    refuse = partial(refuse_unless, config=config, scheme="GPTQ")
    bits, group_size = config.get("bits"), config.get("group_size", -1)
    refuse(bits in BITS, key="bits")
    refuse(isinstance(group_size, int) and (group_size == -1 or group_size > 0), key="group_size")
    refuse(config.get("checkpoint_format") in FORMATS, key="checkpoint_format")
    refuse(not config.get("is_marlin_format"), key="is_marlin_format")
    refuse(config.get("pack_dtype", "int32") == "int32", key="pack_dtype")
    assert isinstance(bits, int) and isinstance(group_size, int)
    return Layout(
        bits=bits,
        group_size=group_size,
        ordered=not config.get("desc_act") or group_size == -1,
        less_one=FORMATS[config.get("checkpoint_format")],
        selection=_selection(config),
    )


def _selection(config: Mapping[str, Any]) -> Selection:
    """Return the quantized matrices: ``modules_in_block_to_quantize`` without the exclusions of ``dynamic``."""
    inside = [name for group in config.get("modules_in_block_to_quantize") or () for name in group]
    dynamic = config.get("dynamic") or {}
    changed = [pattern for pattern in dynamic if not pattern.startswith("-:")]
    if changed:
        raise ConfigError(f"the checkpoint's GPTQ weights have dynamic {changed[0]!r}, which is not supported")
    left_out = tuple(f"re:{pattern.removeprefix('-:')}" for pattern in dynamic)
    return Selection(
        ignored=(*names_in(config, "modules_to_not_convert"), *left_out),
        targets=tuple(f"re:(.*\\.)?{name.replace('.', '[.]')}$" for name in inside) or ("Linear",),
        head=bool(config.get("lm_head")),
        router=False,
        anywhere=True,
    )


def _scheme(matrix: Matrix, layout: Layout, request: QuantizationRequest) -> LinearScheme:
    size_in, size_out, group = matrix.size_in, matrix.size_out, layout.group(matrix.size_in)
    each = WORD // layout.bits
    for size, side in ((size_in, "columns"), *((size, "rows") for size in matrix.parts)):
        if size % each:
            raise ConfigError(f"{matrix.name!r} has {size} {side}: in GPTQ they must be a multiple of {each}")
    groups = -(-size_in // group)
    stored = {
        "qweight": StoredTensor(shape=(size_in // each, size_out), dtype=torch.int32, axis=1, inner=0, columns=each),
        "qzeros": StoredTensor(
            shape=(groups, matrix.row_block_count(each)), dtype=torch.int32, axis=1, rows=each, inner=0, columns=group
        ),
        "scales": StoredTensor(shape=(groups, size_out), dtype=torch.float32, axis=1, inner=0, columns=group),
    }
    if not layout.ordered:
        stored["g_idx"] = StoredTensor(shape=(len(matrix.parts), size_in), dtype=torch.int32, axis=None)
    pieces = partial(_pieces, matrix=matrix, layout=layout)
    return LinearScheme(
        pack=lambda held, bias: pack_pieces(pieces(held), bias, matrix.dtype, request.kernels),
        dense=lambda held: dense(pieces(held), matrix.dtype),
        stored=stored,
    )


def _pieces(held: Mapping[str, Tensor], *, matrix: Matrix, layout: Layout) -> list[Piece]:
    zeros = codes_of(held["qzeros"], layout.bits)
    if layout.less_one:  # 0 is stored as the largest value
        zeros = (zeros + 1) & ((1 << layout.bits) - 1)
    return make_pieces(
        codes_of(held["qweight"].t(), layout.bits),
        held["scales"].t(),
        zeros.t(),
        group=layout.group(matrix.size_in),
        groups=held.get("g_idx"),
        parts=matrix.parts,
    )


def _is_ignored(layout: Layout, name: str, tensor: Tensor) -> bool:
    """Return True for contiguous group indices and zero biases, which some writers add to every layer."""
    if name.endswith(".g_idx") and layout.ordered:
        return torch.equal(tensor.cpu().int(), in_order(len(tensor), layout.group(len(tensor))))
    return name.endswith(".bias") and not bool(tensor.any())
