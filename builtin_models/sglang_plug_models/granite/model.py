"""Granite 3 (IBM, 2024): Llama with scaled embeddings, attention, residual additions and logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention


class ScaledLayer(DecoderLayer):
    """A layer that scales the outputs of attention and MLP before adding them."""

    def __init__(self, config: Any, env: BuildEnv, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__(config, env, attention, mlp)
        self.scale = float(config.residual_multiplier)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, stream = self.input_layernorm.add(x, residual)
        attended = self.self_attn(normed, angles, batch) * self.scale
        normed, stream = self.post_attention_layernorm.add(attended, stream)
        return self.mlp(normed) * self.scale, stream


class Body(Decoder):
    """A decoder with scaled embeddings."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers)
        self.scale = float(config.embedding_multiplier)

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[T]`` to ``[T, hidden]``."""
        return super().embed(tokens) * self.scale


class Granite(CausalLM):
    """Granite 3, dense."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return Body(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return ScaledLayer(config, env, self.attention(config, env, index), self.mlp(config, env, index))

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with the checkpoint's scale."""
        bias = config.attention_bias
        return SelfAttention(config, env, index, qkv_bias=bias, out_bias=bias, scale=config.attention_multiplier)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build an MLP with biases if the checkpoint has some."""
        return GatedMLP(config, env, bias=config.mlp_bias)

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        return super().head(hidden) / self.config.logits_scaling
