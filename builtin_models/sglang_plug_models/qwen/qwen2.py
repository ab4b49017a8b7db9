"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from torch import nn

from sglang_plug import BuildEnv
from sglang_plug_models.common.blocks import CausalLM, SelfAttention, window_of


class Qwen2(CausalLM):
    """Qwen2 and Qwen2.5."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with a window only in the layers that ``layer_types`` names."""
        return SelfAttention(config, env, index, qkv_bias=True, window=window_of(config, index))
