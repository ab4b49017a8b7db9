"""The contract of quantizations: what is kept instead of a matrix, and how a product is computed with it.

A quantization is asked once for each matrix of a model, after the model was built and before weights are loaded. It
leaves the matrix to the kernel set, or answers with a scheme: the tensors that the checkpoint holds, if the checkpoint
is quantized already, and a function that turns what was loaded into a multiplication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    dtype: torch.dtype
    """What the model computes in."""
    plain: bool = False
    """True if the checkpoint holds an ordinary weight whatever its format, because it is the embedding's too or is
    stored the other way round. It can be converted once loaded; ``LinearScheme.stored`` must be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor that a quantized checkpoint holds for a matrix. Of parts that are multiplied together each has one."""

    shape: tuple[int, ...]
    """For all parts together."""
    dtype: torch.dtype
    """Checkpoints must have the same, except that bfloat16, float16 and float32 are converted into each other."""
    axis: int = 0
    """The dimension that output rows lie along."""
    rows: int = 1
    """Output rows that one index of ``axis`` stands for, e.g. 128 for scales of blocks, 8 for packed words."""
    one_per_part: bool = False
    """True if checkpoints hold a single number for each part: it is repeated to the part's shape."""

    def slice(self, rows: slice) -> tuple[slice, ...]:
        """Where the output ``rows`` of one part lie. Raises ``ValueError`` if the part begins inside an index."""
        if rows.start % self.rows:
            raise ValueError(f"the part begins at row {rows.start}, which is no multiple of {self.rows}")
        part = slice(rows.start // self.rows, -(-rows.stop // self.rows))
        return (*(slice(None),) * self.axis, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScheme:
    """How one matrix is loaded, kept and multiplied with."""

    pack: Callable[[Mapping[str, Tensor], Tensor | None], LinearFunction]
    """Called once with the tensors of ``stored`` by name and the bias, if there is one, after loading. The layer then
    drops the originals. Without ``stored`` there is one tensor, ``weight`` ``[out, in]`` in the model's dtype; then the
    call comes as soon as the layer is loaded."""
    stored: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Name after the layer's path -> what the checkpoint holds; empty if the checkpoint is not quantized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A way to keep a model's matrices in fewer bits."""

    name: str
    scheme: Callable[[Matrix], LinearScheme | None]
    """``None`` leaves the matrix as it is. Raises ``ConfigError`` for one that the checkpoint holds in a form that is
    not supported."""


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
    tp_size: int = 1


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
