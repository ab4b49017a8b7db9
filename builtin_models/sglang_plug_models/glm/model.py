"""GLM-4 (GLM team, 2024) and GLM-4-0414: interleaved rotary embeddings in a part of each head.

The later one also normalises the outputs of attention and MLP.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug.layers import RMSNorm
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, GatedMLP
from sglang_plug_models.common.interleaved_rope import InterleavedRopeAttention
from sglang_plug_models.phi.model import PartialRopeDecoder


class Glm(CausalLM):
    """GLM-4 of 2024."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return PartialRopeDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with biases on queries, keys and values if the checkpoint has some."""
        return InterleavedRopeAttention(config, env, index, qkv_bias=getattr(config, "attention_bias", True))


class SandwichLayer(nn.Module):
    """A layer with norms before and after attention and MLP."""

    def __init__(self, config: Any, env: BuildEnv, attention: nn.Module) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(width, eps, env)
        self.self_attn = attention
        self.post_self_attn_layernorm = RMSNorm(width, eps, env)
        self.post_attention_layernorm = RMSNorm(width, eps, env)
        self.mlp = GatedMLP(config, env)
        self.post_mlp_layernorm = RMSNorm(width, eps, env)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, stream = self.input_layernorm.add(x, residual)
        attended = self.post_self_attn_layernorm(self.self_attn(normed, angles, batch))
        normed, stream = self.post_attention_layernorm.add(attended, stream)
        return self.post_mlp_layernorm(self.mlp(normed)), stream


class Glm4(Glm):
    """GLM-4-0414."""

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return SandwichLayer(config, env, self.attention(config, env, index))
