"""Ministral 3 (Mistral AI, 2025): Mistral with queries that grow with the logarithm of the position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug_models.common.blocks import CausalLM, Decoder, SelfAttention, window_of

PositionEncoding = tuple[Tensor, Tensor, Tensor]
"""Cosines and sines of this step's positions, and the factors on queries ``[T, 1, 1]``."""


class ScaledQueryAttention(SelfAttention):
    """Attention whose queries are multiplied by a factor of their position."""

    def forward(self, x: Tensor, angles: Any, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; ``angles`` is a ``PositionEncoding``."""
        cos, sin, factors = angles
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        return self.o_proj(self.attention.rotary(q * factors, k, v, cos, sin, batch).flatten(1))


class ScaledQueryDecoder(Decoder):
    """A decoder whose factors are one within the original context length, and grow with each further such length."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers)
        parameters = config.rope_parameters
        self.growth = float(parameters["llama_4_scaling_beta"])
        self.original = float(parameters["original_max_position_embeddings"])

    def angles(self, positions: Tensor, dtype: torch.dtype) -> PositionEncoding:
        """Return cosines, sines and factors of ``positions`` ``[T]``."""
        cos, sin = self.rope(positions, dtype)
        factors = 1 + self.growth * torch.log1p(torch.floor(positions.float() / self.original))
        return cos, sin, factors.to(dtype)[:, None, None]


class Ministral3(CausalLM):
    """Ministral 3."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return ScaledQueryDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention to the last ``sliding_window`` tokens, or to all."""
        return ScaledQueryAttention(config, env, index, window=window_of(config, index))
