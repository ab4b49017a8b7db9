"""The contract of quantizations: storing a matrix in fewer bits, and multiplying by it.

A quantization is asked once for each matrix of a model, after the model is built and before weights are loaded. It
leaves the matrix to the kernel set, or returns a scheme: the tensors that the checkpoint holds, if the checkpoint is
quantized already, and a function that turns the loaded tensors into a multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from sglang_plug.config import ConfigError

from .kernels import TORCH, Kernels, LinearFunction

ALIGNMENT = 64
"""Bytes of which the address of each part is a multiple."""
MatrixRole = Literal["linear", "head", "router", "experts"]
"""The use of a matrix. ``head``: hidden states to logits; ``router``: scores of experts; ``experts``: all experts of a
layer, stacked; ``linear``: any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The description of a matrix of a model, by which a quantization decides."""

    name: str
    """Path of the layer in the model, ``model.layers.0.self_attn.qkv_proj``."""
    checkpoint_names: Sequence[str]
    """The checkpoint's names of the layer, or of each of its parts: ``(…q_proj, …k_proj, …v_proj)``."""
    other_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """``name``, or one of ``checkpoint_names`` -> the further names that checkpoints may have for it."""
    role: MatrixRole = "linear"
    size_in: int
    size_out: int
    """Rows of all parts together."""
    part_sizes: Sequence[int] = ()
    """Rows of each of ``checkpoint_names``; empty if there is only one."""
    dtype: torch.dtype
    """The dtype that the model computes in."""
    unquantized: bool = False
    """True if the checkpoint holds an ordinary weight whatever its format, because the embedding shares it or it is
    stored transposed. It can be converted once loaded; ``LinearScheme.stored`` must be empty."""

    @property
    def parts(self) -> tuple[int, ...]:
        """Rows of each part; at least one number."""
        return tuple(self.part_sizes) or (self.size_out,)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return all names that checkpoints may have for ``name``, one of ``checkpoint_names`` or the layer's."""
        return name, *self.other_names.get(name, ())

    def row_block_count(self, rows: int) -> int:
        """Return the number of blocks of ``rows`` output rows; each part begins with a new block."""
        return sum(-(-size // rows) for size in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor that a quantized checkpoint holds for a matrix, or for each part of a combined matrix."""

    shape: tuple[int, ...]
    """The shape for all parts together."""
    dtype: torch.dtype
    """The dtype in checkpoints; bfloat16, float16 and float32 are converted into each other."""
    axis: int | None = 0
    """The dimension of the output rows. ``None``: there is none, and each part has a tensor of its own; the loaded
    tensor then has one more dimension, the first, for the parts."""
    rows: int = 1
    """Output rows that one index of ``axis`` covers, e.g. 128 for scales of blocks, 8 for packed words. Each part
    begins with a new index (``Matrix.row_block_count``)."""
    one_per_part: bool = False
    """True if checkpoints hold a single number for each part, which is repeated to the part's shape."""
    inner: int | None = None
    """The dimension of the input columns, if there is one; ranks that share columns hold a part of it each."""
    columns: int = 1
    """Input columns that one index of ``inner`` covers; a single index covers all columns."""
    parts: tuple[StoredTensor, ...] = ()
    """The tensor of each part, if they differ in shape or dtype, as where a file stores some matrices in more bits. Use
    ``StoredTensor.of_parts``: the other fields then describe the bytes of all parts. ``LinearScheme.pack`` receives the
    tensors as ``name.0``, ``name.1``, …"""

    @classmethod
    def of_parts(cls, parts: Sequence[StoredTensor]) -> StoredTensor:
        """Return the description of a combined matrix each of whose parts has a tensor of its own shape and dtype."""
        return cls(shape=(_part_starts(parts)[-1],), dtype=torch.uint8, parts=tuple(parts))

    def part(self, loaded: Tensor, index: int) -> Tensor:
        """Return the tensor of a part, a view of ``loaded``; only for ``of_parts``."""
        part, start = self.parts[index], _part_starts(self.parts)[index]
        return loaded[start : start + _bytes(part)].view(part.dtype).view(part.shape)

    def part_index(self, part: int, sizes: Sequence[int]) -> tuple[int | slice, ...]:
        """Return the index of a part, counted from 0, in the loaded tensor, if parts have ``sizes`` output rows."""
        if self.axis is None:
            return (part,)
        starts = [0, *accumulate(-(-size // self.rows) for size in sizes)]
        return (*(slice(None),) * self.axis, slice(starts[part], starts[part + 1]))

    def own_rows(self, tensor: Tensor, rows: slice) -> Tensor:
        """Return the part of one part's tensor for ``rows``. Raises ``ValueError`` if it cannot be split there."""
        if self.axis is None or (self.one_per_part and tensor.numel() == 1):
            return tensor
        return _cut(tensor, self.axis, rows, self.rows, "rows")

    def own_columns(self, tensor: Tensor, columns: slice) -> Tensor:
        """Return the part of the tensor for ``columns``. Raises ``ValueError`` if it cannot be split there."""
        if self.axis is None:
            raise ValueError("ranks cannot share a matrix with act-order (desc_act) groups; use --tp-size 1")
        if self.inner is None or tensor.numel() == 1 or tensor.shape[self.inner] == 1:
            return tensor
        return _cut(tensor, self.inner, columns, self.columns, "columns")


def _bytes(stored: StoredTensor) -> int:
    return math.prod(stored.shape) * stored.dtype.itemsize


def _part_starts(parts: Sequence[StoredTensor]) -> list[int]:
    """Return the first byte of each part, and the end of the last one; kernels need aligned addresses."""
    return [0, *accumulate(-(-_bytes(part) // ALIGNMENT) * ALIGNMENT for part in parts)]


def _cut(tensor: Tensor, dimension: int, span: slice, group: int, axis: str) -> Tensor:
    if span.start % group:
        raise ValueError(
            f"ranks cannot share it: the boundary {span.start} of a rank is not a multiple of the {group} "
            f"{axis} of a group; "
            "use a smaller --tp-size"
        )
    first, last = span.start // group, -(-span.stop // group)
    if last > tensor.shape[dimension]:
        raise ValueError(
            f"it has {tensor.shape[dimension]} groups of {group} {axis}, and a rank needs those up to number {last}"
        )
    return tensor.narrow(dimension, first, last - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScheme:
    """The way in which one matrix is loaded, stored and multiplied by."""

    pack: Callable[[Mapping[str, Tensor], Tensor | None], LinearFunction]
    """A function of the loaded tensors of ``stored`` by name and of the bias, if there is one. It is called once after
    loading; the layer then drops the originals. Without ``stored`` there is one tensor, ``weight`` ``[out, in]`` in the
    model's dtype, and the call comes as soon as the layer is loaded."""
    stored: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Name after the layer's path -> the tensor in the checkpoint; empty if the checkpoint is not quantized."""
    dense: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    """A function that restores the matrix ``[out, in]`` from tensors of ``stored``, in the model's dtype, for layers
    that do more with a weight than multiply by it. ``None``: it cannot be restored."""


def _never(name: str, tensor: Tensor) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A method of storing a model's matrices in fewer bits."""

    name: str
    scheme: Callable[[Matrix], LinearScheme | None]
    """Return the scheme of a matrix; ``None`` leaves the matrix as it is. Raises ``ConfigError`` for a matrix that the
    checkpoint holds in an unsupported form."""
    is_ignored: Callable[[str, Tensor], bool] = _never
    """Return True for a tensor of the checkpoint that has no parameter in the model and is not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationRequest:
    """The arguments that a quantization is built from."""

    device: torch.device
    dtype: torch.dtype
    """The dtype that the model computes in."""
    stored: Mapping[str, Any] | None = None
    """The checkpoint's ``quantization_config``; ``None``: weights are converted when they are loaded."""
    kernels: Kernels = field(default=TORCH)
    """The kernel set for other matrices; some kernel sets can also multiply by quantized ones."""


def stored_quantization(config: Any) -> Mapping[str, Any] | None:
    """The ``quantization_config`` of a checkpoint's configuration, or ``None`` if it is not quantized.

    Raises ``ConfigError`` if there is one that is not a mapping.
    """
    quantization: Any = getattr(config, "quantization_config", None)
    if hasattr(quantization, "to_dict"):
        quantization = quantization.to_dict()
    if not quantization:
        return None
    if not isinstance(quantization, Mapping):
        raise ConfigError(f"the checkpoint's quantization_config is not an object, but {type(quantization).__name__}")
    return quantization
