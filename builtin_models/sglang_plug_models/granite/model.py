"""Granite 3 (IBM, 2024): Llama whose embeddings, attention, additions and logits are scaled."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug_models.blocks import Angles, CausalLM, Decoder, DecoderLayer, GatedMLP, SelfAttention


class ScaledLayer(DecoderLayer):
    """What attention and MLP give is scaled before it is added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__(config, env, attention, mlp)
        self.scale = float(config.residual_multiplier)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """The MLP's output and the residual stream it is still to be added to, both ``[T, hidden]``."""
        normed, stream = (self.input_layernorm(x), x) if residual is None else self.input_layernorm.add(x, residual)
        attended = self.self_attn(normed, angles, batch) * self.scale
        normed, stream = self.post_attention_layernorm.add(attended, stream)
        return self.mlp(normed) * self.scale, stream


class Body(Decoder):
    """Embeddings are scaled."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers)
        self.scale = float(config.embedding_multiplier)

    def embed(self, tokens: Tensor) -> Tensor:
        """``[T]`` to ``[T, hidden]``."""
        return super().embed(tokens) * self.scale


class Granite(CausalLM):
    """Granite 3, dense."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return Body(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Layer ``index``."""
        return ScaledLayer(config, env, self.attention(config, env, index), self.mlp(config, env, index))

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """With a scale that the checkpoint states."""
        bias = config.attention_bias
        return SelfAttention(config, env, index, qkv_bias=bias, out_bias=bias, scale=config.attention_multiplier)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """With biases if the checkpoint has some."""
        return GatedMLP(config, env, bias=config.mlp_bias)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocabulary]``."""
        return super().head(hidden) / self.config.logits_scaling
