"""Products of all key heads at once equal the products of each head."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sglang_plug_backends.torch_native.all_heads import attend_wide


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_against_torch(kv_heads: int, masked: bool) -> None:
    torch.manual_seed(kv_heads)
    q, k, v = torch.randn(5, kv_heads, 4, 8), torch.randn(5, 11, kv_heads, 8), torch.randn(5, 11, kv_heads, 8)
    mask = None
    if masked:
        hidden = torch.arange(11) >= torch.tensor([11, 3, 1, 7, 10])[:, None]
        mask = torch.zeros(5, 11).masked_fill_(hidden, float("-inf"))[:, None, None]
    expected = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=0.4)
    torch.testing.assert_close(attend_wide(q, k, v, 0.4, mask), expected, atol=1e-5, rtol=1e-5)
