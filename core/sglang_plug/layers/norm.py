"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sglang_plug.contracts.model.model import BuildEnv
from sglang_plug.contracts.serving.executor import shard_slice


class RMSNorm(nn.Module):
    """The normalisation ``(offset + weight) * x / rms(x)`` over the last dimension.

    Args:
        size: width of the last dimension.
        eps: added to the mean square.
        env: the environment that the model is built in.
        offset: added to the weight; some families store the difference from one.
        wide: multiply by the weight in float32 and round once, rather than rounding first. Implied by ``offset``.
    """

    def __init__(self, size: int, eps: float, env: BuildEnv, *, offset: float = 0.0, wide: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.offset, self.wide = eps, offset, wide or offset != 0.0
        self._gain: Tensor | None = None
        self._norm, self._add_norm = env.kernels.rms_norm, env.kernels.add_rms_norm

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``; return the same shape and dtype."""
        return self._norm(x, self._factor(), self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ``(norm(x + residual), x + residual)``, or ``(norm(x), x)`` without one; may write to either input."""
        if residual is None:
            return self(x), x
        return self._add_norm(x, residual, self._factor(), self.eps)

    def pack_weights(self) -> None:
        """Compute the factor in float32 once."""
        if self.wide:
            self._gain = self._wide_weight()

    def _factor(self) -> Tensor:
        """Return the factor, in float32 if it multiplies before rounding."""
        if not self.wide:
            return self.weight
        return self._wide_weight() if self._gain is None else self._gain

    def _wide_weight(self) -> Tensor:
        return self.weight.detach().float() + self.offset


class SharedRMSNorm(RMSNorm):
    """The ``RMSNorm`` over all attention heads together, of which each rank has a part.

    Args:
        heads: number of heads; if there are fewer than ranks, several ranks have the same one.
        dim: width of each head.
        eps: added to the mean square.
        env: the environment that the model is built in.
        wide: see ``RMSNorm``.
    """

    def __init__(self, heads: int, dim: int, eps: float, env: BuildEnv, *, wide: bool = False) -> None:
        self._own = shard_slice(heads * dim, env.ranks, units=heads, label="heads")
        super().__init__(self._own.stop - self._own.start, eps, env, wide=wide)
        self._whole = heads * dim
        self._counted = self._whole * max(1, env.ranks.size // heads)
        self._reduce = env.ranks.all_reduce if env.ranks.size > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise this rank's heads ``[T, own]``."""
        if self._reduce is None:
            return super().forward(x)
        wide = x.float()
        squares = self._reduce(wide.square().sum(-1, keepdim=True))
        wide = wide * torch.rsqrt(squares / self._counted + self.eps)
        if not self.wide:
            return wide.to(x.dtype) * self.weight
        return (wide * (self._wide_weight() if self._gain is None else self._gain)).to(x.dtype)

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy this rank's part of the checkpoint's tensor. Raises ``ValueError`` if that has another shape."""
        if tuple(tensor.shape) != (self._whole,):
            raise ValueError(f"expected shape {(self._whole,)}, found {tuple(tensor.shape)}")
        parameter.copy_(tensor[self._own])

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape for all ranks."""
        return (self._whole,)
