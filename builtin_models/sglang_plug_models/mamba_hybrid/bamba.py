"""Bamba (IBM, Princeton, CMU and UIUC, 2024): Mamba-2, and attention in a few layers, which turns half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from sglang_plug import BuildEnv, StateShape
from sglang_plug.layers import Rope
from sglang_plug_models.blocks import CausalLM, Decoder, GatedMLP, SelfAttention, head_dim
from sglang_plug_models.hybrid import Hybrid
from sglang_plug_models.state_space import mamba2_of, mamba2_shape


class PartlyTurned(Decoder):
    """A decoder that rotates part of each head."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """What ``angles`` works with."""
        return Rope.of(config, head_dim(config), env.context_length)


class Bamba(Hybrid):
    """Bamba."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **CausalLM.packed,
        "mamba": ("self_attn", None),
        "feed_forward": ("mlp", None),
        "pre_ff_layernorm": ("post_attention_layernorm", None),
        "final_layernorm": ("norm", None),
    }

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Of a Mamba-2 mixer."""
        return mamba2_shape(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return PartlyTurned(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Attention or a mixer."""
        if not self.attends(config, index):
            return mamba2_of(config, env, self.state_place(config, index))
        bias = config.attention_bias
        return SelfAttention(config, env, self.kv_place(config, index), qkv_bias=bias, out_bias=bias)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """The same in every layer."""
        return GatedMLP(config, env, bias=config.mlp_bias)
