"""The contract of adapters (such as LoRA): small additions to a model's layers, chosen by each request.

An adapter reader reads a folder and returns the adapter's effect on each layer that it changes: on the input of the
layer's matrix, on the product, or on both. The matrix itself stays untouched, so it may be packed or quantized in any
way, and requests with different adapters, or with none, are computed in one step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sglang_plug.ops.lora import LowRank


@dataclass(frozen=True, slots=True)
class RankShard:
    """The part of a dimension that belongs to this rank, if several ranks share a model."""

    pieces: tuple[slice, ...]
    """Slices of the whole dimension, to be concatenated."""
    whole: int
    """Size of the whole dimension, as the checkpoint has it."""

    def of(self, tensor: Tensor, dimension: int) -> Tensor:
        """Return this rank's part of a checkpoint's ``tensor`` along ``dimension``."""
        import torch

        cut = [tensor.narrow(dimension, piece.start, piece.stop - piece.start) for piece in self.pieces]
        return cut[0] if len(cut) == 1 else torch.cat(cut, dimension)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptableLayer:
    """A matrix of the model, ``[T, in]`` to ``[T, out]``, that adapters may change; it may combine several matrices."""

    name: str
    """Path of the layer in the model, ``model.layers.0.self_attn.qkv_proj``."""
    size_in: int
    size_out: int
    parts: Mapping[str, slice]
    """Name of the layer, or of one of its parts, in checkpoints -> its columns of the product:
    ``{"model.layers.0.self_attn.q_proj": slice(0, 896), …}``."""
    inputs: RankShard | None = None
    """This rank's part of the input columns that checkpoints have; ``None``: all. The products of the ranks are
    summed."""
    outputs: Mapping[str, RankShard] = field(default_factory=dict)
    """Name of ``parts`` -> this rank's part of the rows that checkpoints have for it; missing: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRequest:
    """The arguments of an adapter reader."""

    path: Path
    """The adapter's folder."""
    layers: Sequence[AdaptableLayer]
    device: torch.device
    dtype: torch.dtype
    """The dtype that the model computes in; an adapter's tensors must have it."""

    def target_modules(self) -> dict[str, tuple[AdaptableLayer, slice]]:
        """Return the checkpoint's name of each matrix that adapters may change -> its layer, and its columns there."""
        return {name: (layer, columns) for layer in self.layers for name, columns in layer.parts.items()}


class LayerAdapter(ABC):
    """The effect of one adapter on one layer; applied in every step with tokens of a request with the adapter."""

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the matrix instead of ``x`` ``[N, in]``; must not write to ``x``."""
        return x

    @abstractmethod
    def after(self, x: Tensor, y: Tensor) -> None:
        """Change the product ``y`` ``[N, out]``, bias included, in place.

        ``x`` ``[N, in]`` is the input that was multiplied. Rows are tokens, and each result must be the same as if the
        row were alone. ``y`` may be a part of a larger tensor.
        """


JoinedAdapters = Callable[["Tensor", "Tensor", "Tensor"], None]
"""A function like ``LayerAdapter.after`` for several adapters at once. Its third argument ``[N]`` int64 is the index of
each row's adapter, or the number of adapters for a row without one."""


class Joinable(LayerAdapter):
    """A class of adapters that can be applied together in one layer, in fewer operations than one after the other."""

    @classmethod
    @abstractmethod
    def join(cls, layers: Sequence[Self]) -> JoinedAdapters:
        """Return one function for all of ``layers``, which belong to one layer of the model.

        ``before`` must not change inputs.
        """


class LowRankAdapter(LayerAdapter):
    """A layer's adapter that is only a product of two narrow matrices; kernels apply it, also in captured steps."""

    @property
    @abstractmethod
    def low_rank(self) -> LowRank:
        """The two matrices, which keep their addresses. ``before`` must not change inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that was read from its folder."""

    layers: Mapping[str, LayerAdapter]
    """``AdaptableLayer.name`` -> the adapter's effect on that layer; layers without one are missing."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Plain data that describes the adapter to users, such as ``{"rank": 16}``."""


class AdapterReader(Protocol):
    """The target of an ``AdapterSpec``."""

    def __call__(self, request: AdapterRequest, settings: Any) -> Adapter | None:
        """Read ``request.path``; return ``None`` if the folder has another format.

        Raises ``ConfigError`` for an adapter that is damaged or not supported.
        """
