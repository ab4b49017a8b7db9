"""Attention in blocks of queries equals attention of all queries at once."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sglang_plug_backends.torch_native.query_blocks import attend_in_blocks


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 300),
    before=st.integers(0, 200),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 7]),
    window=st.none() | st.integers(1, 300),
)
def test_against_torch(count: int, before: int, kv_heads: int, group: int, window: int | None) -> None:
    torch.manual_seed(count)
    length, dim, value_dim = count + before, 16, 8
    q = torch.randn(count, kv_heads * group, dim)
    k, v = torch.randn(length, kv_heads, dim), torch.randn(length, kv_heads, value_dim)
    positions = torch.arange(before, length)[:, None]
    keys = torch.arange(length)
    mask = keys <= positions
    if window is not None:
        mask &= keys > positions - window
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None].repeat_interleave(group, 1),
        v.transpose(0, 1)[None].repeat_interleave(group, 1),
        attn_mask=mask,
        scale=0.3,
    )[0].transpose(0, 1)
    torch.testing.assert_close(attend_in_blocks(q, k, v, 0.3, window), expected, atol=1e-5, rtol=1e-4)
