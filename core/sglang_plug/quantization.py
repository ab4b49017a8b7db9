"""The contract of quantizations: what is kept instead of a matrix, and how a product is computed with it.

A quantization is asked once for each matrix of a model, after the model was built and before weights are loaded. It
leaves the matrix to the kernel set, or answers with a scheme: the tensors that the checkpoint holds, if the checkpoint
is quantized already, and a function that turns what was loaded into a multiplication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from .config import ConfigError
from .kernels import TORCH, Kernels, LinearFunction

MatrixRole = Literal["linear", "head", "router", "experts"]
"""``head``: hidden states to logits; ``router``: scores of experts; ``experts``: all experts of a layer, stacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix of a model, as a quantization sees it."""

    name: str
    """Path of the layer in the model, ``model.layers.0.self_attn.qkv_proj``."""
    checkpoint_names: Sequence[str]
    """What checkpoints call the layer, or each of its parts: ``(…q_proj, …k_proj, …v_proj)``."""
    role: MatrixRole = "linear"
    size_in: int
    size_out: int
    """Rows of all parts together."""
    part_sizes: Sequence[int] = ()
    """Rows of each of ``checkpoint_names``; empty if there is only one."""
    dtype: torch.dtype
    """What the model computes in."""
    plain: bool = False
    """True if the checkpoint holds an ordinary weight whatever its format, because it is the embedding's too or is
    stored the other way round. It can be converted once loaded; ``LinearScheme.stored`` must be empty."""

    @property
    def parts(self) -> tuple[int, ...]:
        """Rows of each part, one number at least."""
        return tuple(self.part_sizes) or (self.size_out,)

    def places(self, rows: int) -> int:
        """Indices along output rows, of all parts together, if one stands for ``rows`` and is of one part only."""
        return sum(-(-size // rows) for size in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor that a quantized checkpoint holds for a matrix. Of parts that are multiplied together each has one."""

    shape: tuple[int, ...]
    """For all parts together."""
    dtype: torch.dtype
    """Checkpoints must have the same, except that bfloat16, float16 and float32 are converted into each other."""
    axis: int | None = 0
    """The dimension that output rows lie along. ``None``: there is none, and each part has a tensor of its own; what is
    kept has one dimension more, the first, for the parts."""
    rows: int = 1
    """Output rows that one index of ``axis`` stands for, e.g. 128 for scales of blocks, 8 for packed words. An index is
    of one part only: the next part begins with the next one (``Matrix.places``)."""
    one_per_part: bool = False
    """True if checkpoints hold a single number for each part: it is repeated to the part's shape."""
    inner: int | None = None
    """The dimension that input columns lie along, if one does; ranks that share columns have some of it each."""
    columns: int = 1
    """Input columns that one index of ``inner`` stands for; where there is one index in all, it stands for all."""

    def place(self, part: int, sizes: Sequence[int]) -> tuple[int | slice, ...]:
        """Where a part lies, counted from 0, if parts have ``sizes`` output rows."""
        if self.axis is None:
            return (part,)
        starts = [0, *accumulate(-(-size // self.rows) for size in sizes)]
        return (*(slice(None),) * self.axis, slice(starts[part], starts[part + 1]))

    def own_rows(self, tensor: Tensor, rows: slice) -> Tensor:
        """Of one part's tensor, what stands for some of its output rows. Raises ``ValueError`` if it cannot be cut."""
        if self.axis is None or (self.one_per_part and tensor.numel() == 1):
            return tensor
        return _cut(tensor, self.axis, rows, self.rows, "rows")

    def own_columns(self, tensor: Tensor, columns: slice) -> Tensor:
        """What stands for some of the input columns. Raises ``ValueError`` if it cannot be cut."""
        if self.axis is None:
            raise ValueError("ranks cannot share columns whose groups are in an order of their own")
        if self.inner is None or tensor.numel() == 1 or tensor.shape[self.inner] == 1:
            return tensor
        return _cut(tensor, self.inner, columns, self.columns, "columns")


def _cut(tensor: Tensor, dimension: int, wanted: slice, each: int, what: str) -> Tensor:
    if wanted.start % each:
        raise ValueError(
            f"ranks cannot share it: one of them begins at {wanted.start} of its {what}, {each} of which go together"
        )
    first, last = wanted.start // each, -(-wanted.stop // each)
    if last > tensor.shape[dimension]:
        raise ValueError(f"it has {tensor.shape[dimension]} indices for its {what}, {each} for each, and too few")
    return tensor.narrow(dimension, first, last - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScheme:
    """How one matrix is loaded, kept and multiplied with."""

    pack: Callable[[Mapping[str, Tensor], Tensor | None], LinearFunction]
    """Called once with the tensors of ``stored`` by name and the bias, if there is one, after loading. The layer then
    drops the originals. Without ``stored`` there is one tensor, ``weight`` ``[out, in]`` in the model's dtype; then the
    call comes as soon as the layer is loaded."""
    stored: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Name after the layer's path -> what the checkpoint holds; empty if the checkpoint is not quantized."""
    dense: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    """The matrix ``[out, in]`` that tensors of ``stored`` stand for, in the model's dtype: for layers that do more with
    a weight than multiply by it. ``None``: it cannot be told."""


def _nothing(name: str, tensor: Tensor) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A way to keep a model's matrices in fewer bits."""

    name: str
    scheme: Callable[[Matrix], LinearScheme | None]
    """``None`` leaves the matrix as it is. Raises ``ConfigError`` for one that the checkpoint holds in a form that is
    not supported."""
    dispensable: Callable[[str, Tensor], bool] = _nothing
    """Of a tensor that the checkpoint has and the model has no place for: true if it says nothing that is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationRequest:
    """What a quantization is built for."""

    device: torch.device
    dtype: torch.dtype
    """What the model computes in."""
    stored: Mapping[str, Any] | None = None
    """The checkpoint's ``quantization_config``; ``None``: its weights are to be converted when they are loaded."""
    kernels: Kernels = field(default=TORCH)
    """What other matrices are multiplied with; some kernel sets have products for quantized ones too."""


def stored_quantization(config: Any) -> Mapping[str, Any] | None:
    """The ``quantization_config`` of a checkpoint's configuration, or ``None`` if it is not quantized.

    Raises ``ConfigError`` if there is one that is not a mapping.
    """
    found: Any = getattr(config, "quantization_config", None)
    if hasattr(found, "to_dict"):
        found = found.to_dict()
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(f"the checkpoint's quantization_config is not an object, but {type(found).__name__}")
    return found
