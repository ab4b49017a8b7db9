"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sglang_plug.model import BuildEnv


class RMSNorm(nn.Module):
    """``weight * x / rms(x)`` over the last dimension."""

    def __init__(self, size: int, eps: float, env: BuildEnv) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self._norm, self._add_norm = env.kernels.rms_norm, env.kernels.add_rms_norm

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as ``x``."""
        return self._norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """``(norm(x + residual), x + residual)``; may write to either input."""
        return self._add_norm(x, residual, self.weight, self.eps)
