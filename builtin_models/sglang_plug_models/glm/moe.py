"""GLM-4.5 (GLM team, 2025): DeepSeek-V3's experts with grouped-query attention and partial rotary embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv
from sglang_plug_models.common.blocks import CausalLM, Decoder, GatedMLP, SelfAttention
from sglang_plug_models.deepseek.model import BalancedRouter, SharedExpertsMLP, without_further_layers
from sglang_plug_models.phi.model import PartialRopeDecoder


class Glm4Moe(CausalLM):
    """GLM-4.5 without the multi-token prediction layer."""

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return PartialRopeDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with biases and normalised queries and keys if the checkpoint has them."""
        normalised = getattr(config, "use_qk_norm", False)
        return SelfAttention(config, env, index, qkv_bias=config.attention_bias, qk_norm=normalised)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build an MLP in the first layers and experts in the others."""
        if index < config.first_k_dense_replace:
            return GatedMLP(config, env)
        return SharedExpertsMLP(config, env, BalancedRouter(config, env, index))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``CausalLM``; layers beyond the last are for multi-token prediction and are skipped."""
        super().load_weights(without_further_layers(weights, self.config))
