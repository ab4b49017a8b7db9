"""The contract of pooling: turning the hidden states of a prompt into one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """A linear layer that is applied to a pooled vector: ``activation(weight @ x + bias)``, in float32."""

    weight: Tensor
    """``[out, in]``."""
    bias: Tensor | None = None
    activation: Callable[[Tensor], Tensor] | None = None


PoolingMode = Literal["last", "cls", "mean", "max", "mean_sqrt_len", "weighted_mean"]
"""The reduction of a prompt's states: the last; the first; their mean; their maximum in each dimension; their sum
divided by the square root of their count; their mean with weights 1, 2, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """The steps that turn the hidden states of a prompt into one vector."""

    mode: PoolingMode = "last"
    normalize: bool = True
    """Divide the result by its Euclidean length."""
    projections: tuple[Projection, ...] = ()
    """Projections that are applied to the pooled vector, in order, before it is normalized."""

    def to(self, device: Any) -> Pooling:
        """Return the same pooling with its matrices on ``device``."""
        moved = (
            replace(
                projection,
                weight=projection.weight.to(device),
                bias=None if projection.bias is None else projection.bias.to(device),
            )
            for projection in self.projections
        )
        return replace(self, projections=tuple(moved))
