"""Rotary positions that turn neighbours in a head, where most families turn its halves. Not a plugin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_plug import ForwardBatch

from .blocks import Angles, SelfAttention


def halved(x: Tensor, turned: int) -> Tensor:
    """Of the first ``turned`` numbers of each head, the first of every pair before the second of every pair.

    Kernels turn halves. Any order will do that queries and keys share, so theirs is not changed back.
    """
    pairs, rest = x.tensor_split((turned,), dim=-1)
    return torch.cat((pairs[..., ::2], pairs[..., 1::2], rest), dim=-1)


class PairedAttention(SelfAttention):
    """Neighbours are turned together."""

    def forward(self, x: Tensor, angles: Angles | Any, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        cos, sin = angles
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        turned, v = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
        q, k = halved(turned, cos.shape[-1]).tensor_split((self.heads,), dim=1)
        return self.o_proj(self.attention.rotary(q, k, v, cos, sin, batch).flatten(1))
