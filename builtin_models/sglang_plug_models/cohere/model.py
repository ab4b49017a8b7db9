"""Command R (Cohere, 2024): parallel attention and MLP after one mean-centring norm, and scaled logits.

Rotary embeddings are interleaved. Command R+ normalises queries and keys; Command R7B and A have three layers with a
window for each layer with full attention, which has no positions.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import BuildEnv, ForwardBatch, shard_slice
from sglang_plug.layers import RMSNorm
from sglang_plug.layers.linear import checked
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, GatedMLP, SelfAttention, window_of
from sglang_plug_models.common.interleaved_rope import split_pairs


class CentredNorm(RMSNorm):
    """Layer norm without bias: subtracts the mean, divides by the deviation and multiplies by a weight, in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``, keeping shape and dtype."""
        return (F.layer_norm(x.float(), x.shape[-1:], eps=self.eps) * self.weight.float()).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ``(norm(x + residual), x + residual)``, or ``(norm(x), x)`` without one."""
        total = x if residual is None else x + residual
        return self(total), total


class HeadNorm(CentredNorm):
    """``CentredNorm`` of each head with separate weights; ranks store those of their heads."""

    def __init__(self, heads: int, dim: int, eps: float, env: BuildEnv) -> None:
        super().__init__(dim, eps, env)
        self._whole = (heads, dim)
        self._own = shard_slice(heads, env.ranks, label="heads")
        self.weight = nn.Parameter(torch.empty(self._own.stop - self._own.start, dim))

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of the weights of all ranks' heads."""
        return self._whole

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the weights of this rank's heads. Raises ``ValueError`` for another shape."""
        parameter.copy_(checked(tensor, self._whole)[self._own])


class Attention(SelfAttention):
    """Attention with optional normalisation of queries and keys, and optional rotation."""

    def __init__(
        self, config: Any, env: BuildEnv, index: int, *, use_rope: bool = True, window: int | None = None
    ) -> None:
        bias, normalised = config.attention_bias, getattr(config, "use_qk_norm", False)
        super().__init__(config, env, index, qkv_bias=bias, out_bias=bias, window=window)
        self.use_rope = use_rope
        heads, eps = (config.num_attention_heads, config.num_key_value_heads), config.layer_norm_eps
        self.q_norm, self.k_norm = (HeadNorm(count, self.dim, eps, env) if normalised else None for count in heads)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if not self.use_rope:
            return self.o_proj(self.attention(q, k, v, batch).flatten(1))
        q, k = split_pairs(q, self.dim), split_pairs(k, self.dim)
        return self.o_proj(self.attention.rotary(q, k, v, *angles, batch).flatten(1))


class Layer(nn.Module):
    """Attention and MLP on the same normalised input."""

    def __init__(self, config: Any, env: BuildEnv, attention: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = CentredNorm(config.hidden_size, config.layer_norm_eps, env)
        self.self_attn = attention
        self.mlp = GatedMLP(config, env)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the sum of both outputs and the residual stream to add it to, both ``[T, hidden]``."""
        normed, stream = self.input_layernorm.add(x, residual)
        return self.self_attn(normed, angles, batch) + self.mlp(normed), stream


class Cohere(CausalLM):
    """Command R, Command R+ and Aya."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        own = copy.copy(config)
        own.rms_norm_eps = config.layer_norm_eps
        return Decoder(own, env, layers, norm=CentredNorm)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return Layer(config, env, self.attention(config, env, index))

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the attention of layer ``index``."""
        return Attention(config, env, index)

    def head(self, hidden: Tensor) -> Tensor:
        """Compute scaled logits ``[rows, vocabulary]``."""
        return super().head(hidden) * self.config.logit_scale


class Cohere2(Cohere):
    """Command R7B and Command A."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention that is rotated in layers with a window."""
        window = window_of(config, index)
        return Attention(config, env, index, use_rope=window is not None, window=window)
