"""OLMo 2 (Team OLMo, 2024): norms behind attention and MLP instead of before them, and on all queries and keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug.layers import RMSNorm, SharedRMSNorm
from sglang_plug_models.blocks import Angles, CausalLM, Decoder, GatedMLP, SelfAttention

norm = partial(RMSNorm, wide=True)


class Attention(SelfAttention):
    """Queries and keys are normalised over all heads together, and turned in float32."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        bias = config.attention_bias
        super().__init__(config, env, index, qkv_bias=bias, out_bias=bias)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_norm = SharedRMSNorm(heads, self.dim, config.rms_norm_eps, env, wide=True)
        self.k_norm = SharedRMSNorm(kv_heads, self.dim, config.rms_norm_eps, env, wide=True)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        assert self.q_norm is not None and self.k_norm is not None
        q, k, v = self.qkv_proj.split(x)
        q, k, v = (one.unflatten(-1, (-1, self.dim)) for one in (self.q_norm(q), self.k_norm(k), v))
        return self.o_proj(self.attention.rotary(q, k, v, *angles, batch).flatten(1))


class Layer(nn.Module):
    """What attention and MLP give is normalised before it is added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, env, index)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.mlp = GatedMLP(config, env)
        self.post_feedforward_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """The MLP's output and the residual stream it is still to be added to, both ``[T, hidden]``."""
        stream = x if residual is None else residual + x
        stream = stream + self.post_attention_layernorm(self.self_attn(stream, angles, batch))
        return self.post_feedforward_layernorm(self.mlp(stream)), stream


class Body(Decoder):
    """Angles stay in float32 whatever the weights are in."""

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """Cosines and sines of ``positions`` ``[T]``."""
        found: Angles = self.rope(positions, torch.float32)
        return found


class Olmo2(CausalLM):
    """OLMo 2."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return Body(config, env, layers, norm=norm)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Layer ``index``."""
        return Layer(config, env, index)
