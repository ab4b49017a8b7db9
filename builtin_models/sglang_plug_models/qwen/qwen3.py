"""Qwen3 (Yang et al., 2025): normalised queries and keys instead of biases."""

from __future__ import annotations

from typing import Any

from torch import nn

from sglang_plug import BuildEnv
from sglang_plug_models.common.blocks import CausalLM, SelfAttention, window_of


class Qwen3(CausalLM):
    """Qwen3, dense."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with RMSNorm on each head's queries and keys; only ``layer_types`` layers have a window."""
        bias = getattr(config, "attention_bias", False)
        return SelfAttention(
            config, env, index, qkv_bias=bias, out_bias=bias, qk_norm=True, window=window_of(config, index)
        )
