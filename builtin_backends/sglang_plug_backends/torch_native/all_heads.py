"""Many decodes on a CPU: all key heads of a token as one long vector.

Keys of one token are contiguous in the pool. With queries widened by zeros for the other heads, one batched product
reads them in that order. It does ``kv_heads`` times the arithmetic, and still takes half the time of attention head by
head if there are few key heads (see ``docs/benchmarks.md``).
"""

from __future__ import annotations

import torch
from torch import Tensor


def attend_wide(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Attend with one query of each of ``B`` sequences.

    ``q`` is ``[B, kv_heads, group, dim]``, ``k`` and ``v`` are ``[B, M, kv_heads, dim]``, ``mask`` is added to the
    logits, ``[B, 1, 1, M]``. The result is ``[B, kv_heads, group, dim]``.
    """
    size, kv_heads, group, dim = q.shape
    length = k.shape[1]
    wide = q.new_zeros(size, kv_heads, group, kv_heads, dim)
    for head in range(kv_heads):
        torch.mul(q[:, head], scale, out=wide[:, head, :, head])
    logits = torch.bmm(wide.view(size, kv_heads * group, -1), k.view(size, length, -1).transpose(1, 2))
    if mask is not None:
        logits.add_(mask[:, 0])
    out = torch.bmm(torch.softmax(logits, dim=-1), v.view(size, length, -1))
    out = out.view(size, kv_heads, group, kv_heads, dim)
    return torch.stack([out[:, head, :, head] for head in range(kv_heads)], dim=1)
