"""The contract between models and attention backends: plan once per step, run once per layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batch import ForwardBatch

if TYPE_CHECKING:
    from .model import BuildEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What a backend and the KV pool must know before they see a batch; per rank."""

    heads: int
    kv_heads: int
    dim: int
    layers: int
    value_dim: int | None = None
    """``None``: the same as ``dim``."""


class AttentionBackend(ABC):
    """Stores this step's keys and values and attends over each sequence's whole context.

    Holds no batch: what ``run`` needs is left by ``plan`` in ``batch.plan``, so two batches may be in flight.
    """

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        self.shape, self.device, self.settings = shape, device, settings

    @abstractmethod
    def plan(self, batch: ForwardBatch) -> None:
        """Called once per step, before the model. May leave anything in ``batch.plan``."""

    @abstractmethod
    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Called once per layer.

        ``q`` is ``[T, heads, dim]``, ``k`` ``[T, kv_heads, dim]``, ``v`` ``[T, kv_heads, value_dim]``; the result
        ``[T, heads, value_dim]``. New token ``i`` of a sequence sees the context up to itself if
        ``layer.causal``, at most the last ``layer.window`` tokens if that is set.
        """


class GraphCapable(ABC):
    """Optional second base of a backend whose decode steps can be captured in a CUDA graph."""

    @abstractmethod
    def static_plan(self, batch: ForwardBatch) -> None:
        """Before capture, for one padded batch size: plan with tensors that stay where they are."""

    @abstractmethod
    def refresh(self, batch: ForwardBatch) -> None:
        """Before each replay: bring the static plan up to date in place."""


class Attention(nn.Module):
    """One layer's attention: holds no weights, no cache and no batch.

    Args:
        env: the surroundings the model is built in.
        index: the layer's row in the KV pool.
        scale: factor on the query-key products.
        causal: whether a token may not see later ones.
        window: how many tokens, itself included, a token sees; ``None``: all.
        softcap: logits are ``softcap * tanh(logits / softcap)``; ``None``: not capped.
    """

    def __init__(
        self,
        env: BuildEnv,
        index: int,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.index, self.scale, self.causal = index, scale, causal
        self.window, self.softcap = window, softcap
        self._run = env.attention.run  # resolved once: no lookup per token

    def forward(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """``[T, heads, dim]``, ``[T, kv_heads, dim]``, ``[T, kv_heads, value_dim]`` to ``[T, heads, value_dim]``."""
        return self._run(self, q, k, v, batch)
