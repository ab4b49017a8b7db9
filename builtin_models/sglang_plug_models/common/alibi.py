"""Attention with linear biases (ALiBi; Press et al., 2022), for every attention backend. Not a plugin.

The bias of a query-key product depends on the head and on the distance of the key. A term common to all keys of a query
does not change the softmax, so the key's absolute position is enough, and extra dimensions add it: keys get their
biases as extra numbers, queries get ones. Backends are unaware of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import Attention, AttentionShape, BuildEnv, ConfigError, ForwardBatch

PARTS = 3
"""Numbers per bias: three with eight bits each, as in bfloat16, are as precise as a float32."""
WIDTH = 8
"""Extra dimensions of keys, chosen to keep rows aligned."""


def alibi_shape(config: Any) -> AttentionShape:
    """Return the geometry of a model with ALiBi, in which every head has its own keys."""
    heads = config.num_attention_heads
    dim = config.hidden_size // heads
    return AttentionShape(heads=heads, kv_heads=heads, dim=dim + WIDTH, value_dim=dim, layers=config.num_hidden_layers)


def slopes(heads: int) -> Tensor:
    """Return the slopes ``[heads]`` float32: a geometric series.

    Beyond a power of two heads, every other slope of the next series is used.
    """
    whole = 2 ** math.floor(math.log2(heads))
    return torch.cat((_series(whole), _series(2 * whole)[::2][: heads - whole]))


def _series(heads: int) -> Tensor:
    exponents = torch.arange(1, heads + 1, dtype=torch.float32, device="cpu") * (-8.0 / heads)
    return 2.0**exponents


class Alibi(nn.Module):
    """Biases of a step's tokens as key dimensions. One object serves all layers: call it once per step.

    Args:
        slopes: by how much each token that a key is nearer raises its logit, ``[heads]``, before ``Attention.scale``.
        rounded: positions and biases are rounded to bfloat16, as Falcon does whatever its dtype.
    """

    slopes: Tensor

    def __init__(self, slopes: Tensor, *, rounded: bool = False) -> None:
        super().__init__()
        held = slopes.to(torch.get_default_device())
        self.register_buffer("slopes", held.bfloat16() if rounded else held.float(), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the key dimensions of ``positions`` ``[T]``, ``[T, heads, WIDTH]`` in ``dtype``."""
        remainder = (positions[:, None].to(self.slopes.dtype) * self.slopes).float()
        parts: list[Tensor] = []
        for _ in range(PARTS):
            parts.append(remainder.bfloat16())  # exact in a pool of any dtype that has as many digits
            remainder = remainder - parts[-1].float()
        return F.pad(torch.stack(parts, dim=-1), (0, WIDTH - PARTS)).to(dtype)


class BiasedAttention(nn.Module):
    """``Attention`` of a model with the geometry ``alibi_shape``.

    Raises ``ConfigError`` for a KV pool of eight bits, which would round the biases.
    """

    ones: Tensor

    def __init__(self, env: BuildEnv, index: int, *, heads: int, scale: float) -> None:
        super().__init__()
        kept = env.attention.shape.kv_dtype
        if kept is not None and kept.itemsize == 1:
            raise ConfigError("keys that hold ALiBi's biases need 16 bits: add --kv-cache-dtype bfloat16")
        self.attention = Attention(env, index, scale=scale)
        ones = F.pad(torch.ones(1, heads, PARTS), (0, WIDTH - PARTS))
        self.register_buffer("ones", ones, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, biases: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``q``, ``k`` and ``v`` ``[T, heads, dim]`` and the result of ``Alibi`` to ``[T, heads, dim]``."""
        ones = self.ones.to(q.dtype).expand(len(q), -1, -1)
        return self.attention(torch.cat((q, ones), dim=-1), torch.cat((k, biases), dim=-1), v, batch)
