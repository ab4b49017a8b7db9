"""Attention over a part of the context, and merging of parts.

Softmax over a whole context follows from softmax over its parts if each part also tells the logarithm of the sum of
its exponentials (as in FlashAttention; Dao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Attention


@dataclass(frozen=True, slots=True)
class Partial:
    """Attention of queries over some keys."""

    out: Tensor
    """``[B, heads, N, value_dim]``."""
    weight: Tensor | None = None
    """Log-sum-exp ``[B, heads, N, 1]`` float32, if requested."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Partial:
        """Apply the same change of shape to both."""
        return Partial(change(self.out), None if self.weight is None else change(self.weight))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Attention,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    weigh: bool = False,
) -> Partial:
    """Compute attention of ``q`` ``[B, heads, N, dim]`` over ``k``, ``v`` ``[B, kv_heads, M, dim]``.

    ``heads`` is a multiple of ``kv_heads``. ``mask`` is added to the logits, or says where they count if it is
    boolean. ``causal`` hides key ``j`` from query ``i < j``. ``weigh`` asks for the weight.
    """
    if layer.softcap is None:
        if q.device.type == "cpu" and q.shape[-1] == v.shape[-1]:
            return _flash(q, k, v, layer.scale, mask, causal)
        if not weigh:
            grouped = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=layer.scale, enable_gqa=grouped
            )
            return Partial(out)
    return _plain(q, k, v, layer, mask, causal)


def join(first: Partial, second: Partial) -> Tensor:
    """Merge two parts in float32 to attention over all keys: ``[B, heads, N, value_dim]``."""
    assert first.weight is not None and second.weight is not None
    share = torch.sigmoid(second.weight - first.weight)
    return torch.lerp(first.out.float(), second.out.float(), share)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, causal: bool) -> Partial:
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
    out, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return Partial(out, weight[..., None])


def _plain(q: Tensor, k: Tensor, v: Tensor, layer: Attention, mask: Tensor | None, causal: bool) -> Partial:
    """Compute attention by its definition, with the logits in float32."""
    batch, heads, count, dim = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, count, dim).float()
    logits = grouped @ k.float().transpose(-1, -2)[:, :, None] * layer.scale  # [B, kv_heads, group, N, M]
    if layer.softcap is not None:
        logits = layer.softcap * torch.tanh(logits / layer.softcap)
    if causal:
        hidden = torch.ones(count, length, dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(hidden, float("-inf"))
    if mask is not None:
        spread = mask if mask.dim() < 3 else mask[:, :, None]
        hides = ~spread if spread.dtype == torch.bool else torch.isneginf(spread)
        logits = logits.masked_fill(hides, float("-inf"))
    weight = logits.logsumexp(dim=-1, keepdim=True)
    out = torch.exp(logits - weight) @ v.float()[:, :, None]
    return Partial(out.to(q.dtype).reshape(batch, heads, count, -1), weight.reshape(batch, heads, count, 1))
