"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sglang_plug.model import BuildEnv


class RMSNorm(nn.Module):
    """``(offset + weight) * x / rms(x)`` over the last dimension.

    Args:
        size: width of the last dimension.
        eps: added to the mean square.
        env: the surroundings the model is built in.
        offset: added to the weight; some families store how far it is from one.
        wide: multiply by the weight in float32 and round once, rather than rounding first. Implied by ``offset``.
    """

    def __init__(self, size: int, eps: float, env: BuildEnv, *, offset: float = 0.0, wide: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.offset, self.wide = eps, offset, wide or offset != 0.0
        self._gain: Tensor | None = None
        self._norm, self._add_norm = env.kernels.rms_norm, env.kernels.add_rms_norm

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as ``x``."""
        if not self.wide:
            return self._norm(x, self.weight, self.eps)
        gain = self._wide_weight() if self._gain is None else self._gain
        return self._norm(x.float(), gain, self.eps).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """``(norm(x + residual), x + residual)``; may write to either input."""
        if not self.wide:
            return self._add_norm(x, residual, self.weight, self.eps)
        total = x + residual
        return self(total), total

    def pack_weights(self) -> None:
        """Compute the factor in float32 once."""
        if self.wide:
            self._gain = self._wide_weight()

    def _wide_weight(self) -> Tensor:
        return self.weight.detach().float() + self.offset
