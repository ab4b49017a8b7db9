"""Mistral (Jiang et al., 2023): Llama with a sliding window."""

from __future__ import annotations

from typing import Any

from torch import nn

from sglang_plug import BuildEnv
from sglang_plug_models.common.blocks import CausalLM, SelfAttention, window_of


class Mistral(CausalLM):
    """Mistral 7B and related models."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention to the last ``sliding_window`` tokens, or to all."""
        return SelfAttention(config, env, index, window=window_of(config, index))
