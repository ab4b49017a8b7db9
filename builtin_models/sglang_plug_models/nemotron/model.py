"""Nemotron-H and Nemotron 3 (NVIDIA, 2025).

A layer is a single mixer: Mamba-2, attention without positions, an MLP, or experts and a shared one. Experts may work
on narrower states. No MLP has a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError, StateShape
from sglang_plug.layers import (
    Experts,
    GatedRMSNorm,
    Linear,
    MergedColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
    activation,
)
from sglang_plug_models.common.blocks import CausalLM, Decoder
from sglang_plug_models.common.hybrid import Hybrid, NoRopeAttention, NoRopeDecoder, SingleLayer
from sglang_plug_models.common.state_space import Mamba2, Mamba2Shape
from sglang_plug_models.deepseek.model import BalancedRouter

norm = partial(RMSNorm, wide=True)


def shape_of(config: Any) -> Mamba2Shape:
    """Return the sizes of the mixers."""
    return Mamba2Shape(
        heads=config.mamba_num_heads,
        dim=config.mamba_head_dim,
        groups=config.n_groups,
        state=config.ssm_state_size,
        width=config.conv_kernel,
    )


class MLP(nn.Module):
    """``down(activation(up(x)))``."""

    def __init__(self, config: Any, env: BuildEnv, width: int) -> None:
        super().__init__()
        bias = config.mlp_bias
        self.up_proj = MergedColumnParallelLinear(config.hidden_size, {"up": width}, env, bias=bias)
        self.down_proj = RowParallelLinear(width, config.hidden_size, env, bias=bias)
        self._activate = activation(config.mlp_hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.down_proj(self._activate(self.up_proj(x)))


class SparseMLP(nn.Module):
    """A router and its experts, whose input may be narrower than the hidden states, and a shared MLP."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width = config.moe_latent_size or config.hidden_size
        self.gate = BalancedRouter(config, env, index)
        self.experts = Experts(
            width,
            config.moe_intermediate_size,
            config.n_routed_experts,
            env,
            activation_name=config.mlp_hidden_act,
            gated=False,
        )
        self.shared_experts = MLP(config, env, config.moe_shared_expert_intermediate_size)
        self.fc1_latent_proj = self.fc2_latent_proj = None
        if config.moe_latent_size is not None:
            self.fc1_latent_proj = Linear(config.hidden_size, width, env, bias=config.mlp_bias)
            self.fc2_latent_proj = Linear(width, config.hidden_size, env, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        narrow = x if self.fc1_latent_proj is None else self.fc1_latent_proj(x)
        result: Tensor = self.experts(narrow, *self.gate.choose(x))
        return (result if self.fc2_latent_proj is None else self.fc2_latent_proj(result)) + self.shared_experts(x)


class NemotronH(Hybrid):
    """Nemotron-H, and Nemotron 3, which has experts."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **{name: ours for name, ours in CausalLM.packed.items() if ours[0] == "qkv_proj"},
        "backbone": ("model", None),
        "embeddings": ("embed_tokens", None),
        "norm_f": ("norm", None),
    }
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, "mtp.")

    @classmethod
    def has_recurrent_state(cls, config: Any, index: int) -> bool:
        """Return True for layers with a mixer."""
        return bool(config.layer_types[index] == "linear_attention")

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a Mamba-2 mixer."""
        return shape_of(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return NoRopeDecoder(config, env, layers, norm=norm)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in the configuration."""
        before = norm(config.hidden_size, config.layer_norm_epsilon, env)
        match kind := config.layer_types[index]:
            case "linear_attention":
                return SingleLayer(before, self.mamba(config, env, index))
            case "full_attention":
                return SingleLayer(before, NoRopeAttention(config, env, self.kv_layer_index(config, index)))
            case "moe":
                return SingleLayer(before, SparseMLP(config, env, index), per_token=True)
            case "mlp":
                return SingleLayer(before, MLP(config, env, config.intermediate_size), per_token=True)
        raise ConfigError(f"layer {index} is {kind!r}; known: linear_attention, full_attention, moe, mlp")

    def mamba(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the mixer of layer ``index``."""
        shape = shape_of(config)
        return Mamba2(
            config.hidden_size,
            shape,
            env,
            self.state_index(config, index),
            norm=GatedRMSNorm(shape.inner, config.layer_norm_epsilon, groups=shape.groups, gate_first=True),
            activation_name=config.mamba_hidden_act,
            bias=config.use_bias,
            conv_bias=config.use_conv_bias,
            limits=(config.time_step_min, float("inf")),
        )
