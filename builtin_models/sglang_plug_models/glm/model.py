"""GLM-4 (GLM team, 2024) and GLM-4-0414: neighbours in a part of each head are turned together.

The later one also normalises what attention and MLP give.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug.layers import RMSNorm
from sglang_plug_models.blocks import Angles, CausalLM, Decoder, GatedMLP
from sglang_plug_models.paired import PairedAttention
from sglang_plug_models.phi.model import PartlyTurned


class Glm(CausalLM):
    """GLM-4 of 2024."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return PartlyTurned(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Biases on queries, keys and values, if the checkpoint has some."""
        return PairedAttention(config, env, index, qkv_bias=getattr(config, "attention_bias", True))


class SandwichLayer(nn.Module):
    """Attention and MLP with a norm on either side of each."""

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
        """The MLP's output and the residual stream it is still to be added to, both ``[T, hidden]``."""
        normed, stream = (self.input_layernorm(x), x) if residual is None else self.input_layernorm.add(x, residual)
        attended = self.post_self_attn_layernorm(self.self_attn(normed, angles, batch))
        normed, stream = self.post_attention_layernorm.add(attended, stream)
        return self.post_mlp_layernorm(self.mlp(normed)), stream


class Glm4(Glm):
    """GLM-4-0414."""

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Layer ``index``."""
        return SandwichLayer(config, env, self.attention(config, env, index))
