"""The reference implementation of attention, one sequence after the other, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug.contracts.model.attention import Attention


def attend(layer: Attention, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Compute the attention of one sequence: the last ``n`` of its ``m`` tokens attend to the whole context.

    ``q`` is ``[n, heads, dim]``, ``k`` ``[m, kv_heads, dim]``, ``v`` ``[m, kv_heads, value_dim]``, ``sinks``
    ``[heads]``; the result is ``[n, heads, value_dim]`` in float64 on the host.
    """
    new, context = len(q), len(k)
    q, k, v = (part.detach().to("cpu", torch.float64) for part in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    query_positions = torch.arange(context - new, context)[:, None]
    key_positions = torch.arange(context)[None]
    masked = torch.zeros(new, context, dtype=torch.bool)
    if layer.causal:
        masked |= key_positions > query_positions
    if layer.window is not None:
        masked |= key_positions <= query_positions - layer.window
    scores = scores.masked_fill(masked, float("-inf"))
    if sinks is not None:
        column = sinks.detach().to("cpu", torch.float64)[:, None, None].expand(-1, new, 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(-1)[..., :context]
    return torch.einsum("hnm,mhd->nhd", weights, v)
