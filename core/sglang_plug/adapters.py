"""The contract of adapters: small additions to a model's layers, of which each request may use another.

A format of adapters is asked to read a folder. It answers with what the adapter does in each layer that it changes:
to the input of the layer's matrix, to the product, or to both. The matrix itself is never touched, so that it may be
packed or quantized in any way, and requests with different adapters, or with none, are computed in one step.
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

    from .low_rank import LowRank


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What one of several ranks that share a model has of a dimension."""

    pieces: tuple[slice, ...]
    """One behind the other."""
    whole: int
    """What all have."""

    def of(self, tensor: Tensor, dimension: int) -> Tensor:
        """The own part of what a checkpoint holds."""
        import torch

        cut = [tensor.narrow(dimension, piece.start, piece.stop - piece.start) for piece in self.pieces]
        return cut[0] if len(cut) == 1 else torch.cat(cut, dimension)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptableLayer:
    """A matrix of the model that adapters may change, ``[T, in]`` to ``[T, out]``; it may be several in one."""

    name: str
    """Path of the layer in the model, ``model.layers.0.self_attn.qkv_proj``."""
    size_in: int
    size_out: int
    parts: Mapping[str, slice]
    """What checkpoints call the layer, or one of its parts -> the columns of the product that are its own:
    ``{"model.layers.0.self_attn.q_proj": slice(0, 896), …}``."""
    inputs: OwnPart | None = None
    """What this rank has of the columns that checkpoints have for the input; ``None``: all. The ranks' products are
    added up."""
    outputs: Mapping[str, OwnPart] = field(default_factory=dict)
    """By a name of ``parts``, what this rank has of the rows that checkpoints have for it; missing: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRequest:
    """What a format of adapters is asked to read."""

    path: Path
    """A folder."""
    layers: Sequence[AdaptableLayer]
    device: torch.device
    dtype: torch.dtype
    """What the model computes in; what an adapter keeps is expected in it."""

    def places(self) -> dict[str, tuple[AdaptableLayer, slice]]:
        """What checkpoints call each matrix -> its layer, and its columns of the product."""
        return {name: (layer, columns) for layer in self.layers for name, columns in layer.parts.items()}


class LayerAdapter(ABC):
    """What one adapter does in one layer. Called in every step that computes tokens of a request with the adapter."""

    def before(self, x: Tensor) -> Tensor:
        """What is multiplied instead of ``x`` ``[N, in]``; must not write to it."""
        return x

    @abstractmethod
    def after(self, x: Tensor, y: Tensor) -> None:
        """Change the product ``y`` ``[N, out]``, bias included, in place; ``x`` ``[N, in]`` is what was multiplied.

        Rows are tokens, and each must come out as if it were alone. ``y`` may be a part of a larger tensor.
        """


JoinedAdapters = Callable[["Tensor", "Tensor", "Tensor"], None]
"""As ``LayerAdapter.after`` of several adapters at once, with which of them is each row's, ``[N]`` int64: an index, or
their number for a row that none of them changes."""


class Joinable(LayerAdapter):
    """A layer's adapters of one class that can be applied together, in fewer operations than one after the other."""

    @classmethod
    @abstractmethod
    def join(cls, layers: Sequence[Self]) -> JoinedAdapters:
        """One function for all of ``layers``, which are of one layer of the model; ``before`` must leave inputs as they
        are."""


class LowRankAdapter(LayerAdapter):
    """A layer's adapter that is only a product of two narrow matrices: kernels apply it, also in captured steps."""

    @property
    @abstractmethod
    def low_rank(self) -> LowRank:
        """The matrices, which stay where they are. ``before`` must leave inputs as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that was read."""

    layers: Mapping[str, LayerAdapter]
    """``AdaptableLayer.name`` -> what it does there; layers that it leaves alone are missing."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Plain data for those who ask what is loaded, such as ``{"rank": 16}``."""


class AdapterReader(Protocol):
    """The target of an ``AdapterSpec``."""

    def __call__(self, request: AdapterRequest, settings: Any) -> Adapter | None:
        """Read ``request.path``; ``None`` for a folder of another format.

        Raises ``ConfigError`` for one that is damaged, or asks for something that is not supported.
        """
