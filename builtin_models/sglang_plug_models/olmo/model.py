"""OLMo 2 (Team OLMo, 2024): norms after attention and MLP instead of before them, and on all queries and keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug.layers import RMSNorm, SharedRMSNorm
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, GatedMLP, SelfAttention

norm = partial(RMSNorm, wide=True)


class Attention(SelfAttention):
    """Attention with queries and keys normalised over all heads together and rotated in float32."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        bias = config.attention_bias
        super().__init__(config, env, index, qkv_bias=bias, out_bias=bias)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_norm = SharedRMSNorm(heads, self.dim, config.rms_norm_eps, env, wide=True)
        self.k_norm = SharedRMSNorm(kv_heads, self.dim, config.rms_norm_eps, env, wide=True)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        assert self.q_norm is not None and self.k_norm is not None
        q, k, v = self.qkv_proj.split(x)
        q, k, v = (tensor.unflatten(-1, (-1, self.dim)) for tensor in (self.q_norm(q), self.k_norm(k), v))
        return self.o_proj(self.attention.rotary(q, k, v, *angles, batch).flatten(1))


class Layer(nn.Module):
    """A layer that normalises the outputs of attention and MLP before adding them."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, env, index)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.mlp = GatedMLP(config, env)
        self.post_feedforward_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        stream = x if residual is None else residual + x
        stream = stream + self.post_attention_layernorm(self.self_attn(stream, angles, batch))
        return self.post_feedforward_layernorm(self.mlp(stream)), stream


class Body(Decoder):
    """A decoder with float32 angles for weights of any dtype."""

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """Return the cosines and sines of ``positions`` ``[T]``."""
        angles: Angles = self.rope(positions, torch.float32)
        return angles


class Olmo2(CausalLM):
    """OLMo 2."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return Body(config, env, layers, norm=norm)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return Layer(config, env, index)
