"""Interleaved rotary embeddings, which rotate neighbouring dimensions instead of halves. Not a plugin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_plug import ForwardBatch

from .blocks import Angles, SelfAttention


def split_pairs(x: Tensor, rotary_dim: int) -> Tensor:
    """Permute the first ``rotary_dim`` dimensions of each head: first members of all pairs, then the second ones.

    Kernels rotate halves. The order need not be restored, because queries and keys share it.
    """
    pairs, unrotated = x.tensor_split((rotary_dim,), dim=-1)
    return torch.cat((pairs[..., ::2], pairs[..., 1::2], unrotated), dim=-1)


class InterleavedRopeAttention(SelfAttention):
    """Attention with interleaved rotary embeddings."""

    def forward(self, x: Tensor, angles: Angles | Any, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        cos, sin = angles
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        qk, v = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
        q, k = split_pairs(qk, cos.shape[-1]).tensor_split((self.heads,), dim=1)
        return self.o_proj(self.attention.rotary(q, k, v, cos, sin, batch).flatten(1))
