"""Bamba (IBM, Princeton, CMU and UIUC, 2024): Mamba-2, and attention with partial rotation in a few layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from sglang_plug import BuildEnv, StateShape
from sglang_plug.layers import Rope
from sglang_plug_models.common.blocks import CausalLM, Decoder, GatedMLP, SelfAttention, head_dim
from sglang_plug_models.common.hybrid import Hybrid
from sglang_plug_models.common.state_space import mamba2_of, mamba2_shape


class PartialRopeDecoder(Decoder):
    """A decoder that rotates part of each head."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed."""
        return Rope.of(config, head_dim(config), env.context_length)


class Bamba(Hybrid):
    """Bamba: layers of attention or Mamba-2, each with an MLP."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **CausalLM.packed,
        "mamba": ("self_attn", None),
        "feed_forward": ("mlp", None),
        "pre_ff_layernorm": ("post_attention_layernorm", None),
        "final_layernorm": ("norm", None),
    }

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a Mamba-2 mixer."""
        return mamba2_shape(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return PartialRopeDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention or a mixer."""
        if not self.has_attention(config, index):
            return mamba2_of(config, env, self.state_index(config, index))
        bias = config.attention_bias
        return SelfAttention(config, env, self.kv_layer_index(config, index), qkv_bias=bias, out_bias=bias)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the same MLP in every layer."""
        return GatedMLP(config, env, bias=config.mlp_bias)
