"""Checkpoints made by GPTQ (Frantar et al., 2022), as AutoGPTQ and GPTQModel write them.

A layer has ``qweight`` ``[in * bits / 32, out]``, words with the codes of one output's neighbouring inputs; ``qzeros``
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
from .selection import Selection, names_in, refuse_unless
from .words import codes_of

BITS = (2, 4, 8)
WORD = 32
FORMATS = {None: True, "": True, "gptq": True, "gptq_v2": False}
"""``checkpoint_format`` -> whether zeros are stored less one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What ``quantization_config`` says."""

    bits: int
    group_size: int
    """-1: all columns."""
    ordered: bool
    """Whether groups lie next to each other; otherwise ``g_idx`` says which column belongs to which."""
    less_one: bool
    selection: Selection

    def group(self, columns: int) -> int:
        """Columns of a group of a matrix that has so many."""
        return columns if self.group_size == -1 else self.group_size


def build(request: QuantizationRequest, settings: object) -> Quantization:
    """Reads checkpoints. Raises ``ConfigError`` for one that is not of this format, or has what is not supported."""
    layout = read(request.stored or {})
    return Quantization(
        name="gptq",
        scheme=lambda matrix: _scheme(matrix, layout, request) if layout.selection.holds(matrix) else None,
        dispensable=partial(_dispensable, layout),
    )


def read(config: Mapping[str, Any]) -> Layout:
    """Understand ``quantization_config``. Raises ``ConfigError`` that names what is not supported."""
    method = config.get("quant_method")
    if method != "gptq":
        raise ConfigError(f"--quantization gptq reads checkpoints whose quant_method is 'gptq', and not {method!r}")
    refuse = partial(refuse_unless, config=config, what="GPTQ")
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
    """Which matrices: those of ``modules_in_block_to_quantize``, but for what ``dynamic`` takes out."""
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
    for size, what in ((size_in, "columns"), *((size, "rows") for size in matrix.parts)):
        if size % each:
            raise ConfigError(f"{matrix.name!r} has {size} {what}: in GPTQ they must be a multiple of {each}")
    groups = -(-size_in // group)
    stored = {
        "qweight": StoredTensor(shape=(size_in // each, size_out), dtype=torch.int32, axis=1, inner=0, columns=each),
        "qzeros": StoredTensor(
            shape=(groups, matrix.places(each)), dtype=torch.int32, axis=1, rows=each, inner=0, columns=group
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
    if layout.less_one:  # 0 is stored as the greatest code
        zeros = (zeros + 1) & ((1 << layout.bits) - 1)
    return make_pieces(
        codes_of(held["qweight"].t(), layout.bits),
        held["scales"].t(),
        zeros.t(),
        group=layout.group(matrix.size_in),
        groups=held.get("g_idx"),
        parts=matrix.parts,
    )


def _dispensable(layout: Layout, name: str, tensor: Tensor) -> bool:
    """Groups that lie next to each other, and biases of zeros, which some writers give to every layer."""
    if name.endswith(".g_idx") and layout.ordered:
        return torch.equal(tensor.cpu().int(), in_order(len(tensor), layout.group(len(tensor))))
    return name.endswith(".bias") and not bool(tensor.any())
