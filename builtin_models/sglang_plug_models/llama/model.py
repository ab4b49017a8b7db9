"""Llama (Touvron et al., 2023; Llama team, 2024)."""

from __future__ import annotations

from typing import Any

from torch import nn

from sglang_plug import BuildEnv
from sglang_plug_models.common.blocks import CausalLM, GatedMLP, SelfAttention


class Llama(CausalLM):
    """Llama 2 and 3."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with biases if the checkpoint has them."""
        bias = getattr(config, "attention_bias", False)
        return SelfAttention(config, env, index, qkv_bias=bias, out_bias=bias)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build an MLP with biases if the checkpoint has them."""
        return GatedMLP(config, env, bias=getattr(config, "mlp_bias", False))
