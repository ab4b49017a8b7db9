"""Jamba (Lieber et al., 2024): Mamba, a few attention layers without positions, and experts in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from torch import nn

from sglang_plug import BuildEnv, StateShape
from sglang_plug.layers import RMSNorm
from sglang_plug_models.common.blocks import Decoder, GatedMLP
from sglang_plug_models.common.hybrid import NoRopeAttention, NoRopeDecoder
from sglang_plug_models.common.state_space import Mamba, MambaShape
from sglang_plug_models.moe.block import SparseMLP, router

from .bamba import Bamba


def shape_of(config: Any) -> MambaShape:
    """Return the sizes of the mixers."""
    return MambaShape(
        inner=config.mamba_expand * config.hidden_size,
        state=config.mamba_d_state,
        rank=config.mamba_dt_rank,
        width=config.mamba_d_conv,
    )


class Jamba(Bamba):
    """Jamba: layers of attention or Mamba, each with an MLP or experts."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {**Bamba.packed, "router": ("gate", None)}

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a Mamba mixer."""
        return shape_of(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return NoRopeDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention or a mixer."""
        if self.has_attention(config, index):
            return NoRopeAttention(config, env, self.kv_layer_index(config, index))
        return Mamba(
            config.hidden_size,
            shape_of(config),
            env,
            self.state_index(config, index),
            norm=partial(RMSNorm, eps=config.rms_norm_eps, env=env),
            activation_name=config.hidden_act,
            bias=config.mamba_proj_bias,
            conv_bias=config.mamba_conv_bias,
        )

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts in some layers and an MLP in the others."""
        experts = config.layers_num_experts[index]
        if experts == 1:
            return GatedMLP(config, env)
        gate = router(config, env, index, experts=experts, normalise=False)
        return SparseMLP(config, env, gate, width=config.intermediate_size)
