"""LFM2 (Liquid AI, 2025): most layers are a short gated convolution, the others are attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import Experts, Linear, RMSNorm, Router, ShortConv
from sglang_plug_models.common.blocks import Angles, CausalLM, GatedMLP, SelfAttention
from sglang_plug_models.common.hybrid import Hybrid

NAMES = {"w1": "gate", "w3": "up", "w2": "down"}
"""Checkpoint names of the matrices of an MLP."""


class GatedConv(nn.Module):
    """``out(read * convolution(write * x))``; all three are projected from the input."""

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.conv_bias
        self.in_proj = Linear(hidden, 3 * hidden, env, bias=bias)
        self.conv = ShortConv(hidden, config.conv_L_cache, env, state, bias=bias)
        self.o_proj = Linear(hidden, hidden, env, bias=bias)

    def forward(self, x: Tensor, angles: Any, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        write, read, value = self.in_proj(x).chunk(3, dim=-1)
        return self.o_proj(read * self.conv(write * value, batch))


class BiasedRouter(Router):
    """Router that scores experts independently; an optional bias affects the choice but not the weights."""

    def __init__(self, config: Any, env: BuildEnv, layer: int) -> None:
        chosen, normalise = config.num_experts_per_tok, config.norm_topk_prob
        super().__init__(config.hidden_size, config.num_experts, chosen, env, layer=layer, normalise=normalise)
        self.factor = config.routed_scaling_factor
        self.expert_bias = None
        if config.use_expert_bias:
            self.expert_bias = nn.Parameter(torch.empty(config.num_experts, dtype=torch.float32))

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts with sigmoid weights."""
        scores = logits.float().sigmoid()
        biased = scores if self.expert_bias is None else scores + self.expert_bias
        experts = biased.topk(self.chosen, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
        return experts, weights * self.factor


class SparseMLP(nn.Module):
    """A router and its experts."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.gate = BiasedRouter(config, env, index)
        width = config.moe_intermediate_size
        self.experts = Experts(config.hidden_size, width, config.num_experts, env, names=NAMES)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.experts(x, *self.gate.choose(x))


class Layer(nn.Module):
    """Attention or a convolution, and an MLP."""

    def __init__(self, config: Any, env: BuildEnv, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(config.hidden_size, config.norm_eps, env)
        self.has_attention = isinstance(mixer, SelfAttention)
        if self.has_attention:
            self.self_attn = mixer
        else:
            self.conv = mixer
        self.ffn_norm = RMSNorm(config.hidden_size, config.norm_eps, env)
        self.feed_forward = mlp

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.operator_norm.add(x, residual)
        mixed = (self.self_attn if self.has_attention else self.conv)(normed, angles, batch)
        normed, residual = self.ffn_norm.add(mixed, residual)
        return self.feed_forward(normed), residual


class Lfm2(Hybrid):
    """LFM2, dense."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **CausalLM.packed,
        **{name: ("down_proj", None) if part == "down" else ("gate_up_proj", part) for name, part in NAMES.items()},
        "out_proj": ("o_proj", None),
        "q_layernorm": ("q_norm", None),
        "k_layernorm": ("k_norm", None),
        "embedding_norm": ("norm", None),
        "expert_bias": ("gate.expert_bias", None),
    }

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a convolution."""
        return (ShortConv.shape(config.hidden_size, config.conv_L_cache),)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        mixer: nn.Module
        if self.has_attention(config, index):
            mixer = SelfAttention(config, env, self.kv_layer_index(config, index), qk_norm=True)
        else:
            mixer = GatedConv(config, env, self.state_index(config, index))
        return Layer(config, env, mixer, self.mlp(config, env, index))

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the same MLP in every layer."""
        return GatedMLP(config, env, width=mlp_width(config), activation="silu")


class Lfm2Moe(Lfm2):
    """LFM2 with experts in all but the first layers."""

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build an MLP in the first layers and experts in the others."""
        if index < config.num_dense_layers:
            return GatedMLP(config, env, activation="silu")
        return SparseMLP(config, env, index)


def mlp_width(config: Any) -> int:
    """Return the width of an MLP, which most configurations define indirectly."""
    width = int(config.intermediate_size)
    if not config.block_auto_adjust_ff_dim:
        return width
    width, step = int(config.block_ffn_dim_multiplier * int(2 * width / 3)), config.block_multiple_of
    return -(-width // step) * step
