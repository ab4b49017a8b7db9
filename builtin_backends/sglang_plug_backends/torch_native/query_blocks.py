"""Long prompts on a CPU: blocks of queries times all visible keys as plain matrix products.

torch's flash attention for CPUs converts bfloat16 block by block; whole products and one softmax over rows that stay in
the processor's cache take less than half its time (see ``docs/benchmarks.md``).
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_ROWS, MIN_ROWS = 128, 16
"""Maximum and minimum queries in a block."""
LOGITS = 1 << 21
"""Maximum logits of a block, so that they stay in the cache."""


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """Let the last ``N`` of ``M`` positions attend causally, to at most the last ``window`` positions.

    ``q`` is ``[N, heads, dim]``, ``k`` ``[M, kv_heads, dim]``, ``v`` ``[M, kv_heads, value_dim]``; the result is
    ``[N, heads, value_dim]``.
    """
    count, heads, dim = q.shape
    length, kv_heads, value_dim = v.shape
    group = heads // kv_heads
    before = length - count
    rows = max(MIN_ROWS, min(MAX_ROWS, count, LOGITS // (group * length)))
    queries = (q * scale).view(count, kv_heads, group, dim).transpose(0, 1).contiguous()
    keys, values = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    out = q.new_empty(kv_heads, count, group, value_dim)
    later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
    later = torch.zeros(rows, rows, dtype=q.dtype).masked_fill_(later, float("-inf"))[:, None]
    scratch = q.new_empty(2, rows * group * length)
    for start in range(0, count, rows):
        end = min(start + rows, count)
        first = 0 if window is None else max(0, before + start - window + 1)
        last = before + end
        size, width = end - start, last - first
        logits, weights = scratch[:, : size * group * width].view(2, size * group, width)
        for head in range(kv_heads):
            torch.mm(queries[head, start:end].view(-1, dim), keys[head, first:last].T, out=logits)
            shaped = logits.view(size, group, width)
            shaped[..., width - size :].add_(later[:size, :, :size])
            if window is not None:
                _hide_before(shaped, before + start - first, window)
            torch._softmax(logits, -1, False, out=weights)
            torch.mm(weights, values[head, first:last], out=out[head, start:end].view(-1, value_dim))
    return out.transpose(0, 1).reshape(count, heads, value_dim)


def _hide_before(logits: Tensor, first: int, window: int) -> None:
    """Mask ``logits`` ``[N, group, M]``: row ``i`` is at column ``first + i`` and attends to ``window`` columns."""
    rows = torch.arange(logits.shape[0])[:, None] + first
    hidden = torch.arange(logits.shape[2]) <= rows - window
    logits.masked_fill_(hidden[:, None], float("-inf"))
