"""What attention must compute, one sequence after the other, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug.attention import Attention


def attend(layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence: the last ``n`` of its ``m`` tokens look at the whole context.

    ``q`` is ``[n, heads, dim]``, ``k`` ``[m, kv_heads, dim]``, ``v`` ``[m, kv_heads, value_dim]``; the result is
    ``[n, heads, value_dim]`` in float64 on the host.
    """
    new, context = len(q), len(k)
    q, k, v = (part.detach().to("cpu", torch.float64) for part in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    here = torch.arange(context - new, context)[:, None]
    there = torch.arange(context)[None]
    hidden = torch.zeros(new, context, dtype=torch.bool)
    if layer.causal:
        hidden |= there > here
    if layer.window is not None:
        hidden |= there <= here - layer.window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, v)
