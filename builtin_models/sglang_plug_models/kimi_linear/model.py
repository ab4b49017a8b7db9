"""Kimi Linear (Kimi Team, 2025).

Most layers have Kimi Delta Attention, a gated DeltaNet in which each key channel has its own decay. The others have
latent attention without positions. After a few dense layers come experts, next to shared ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import (
    GatedRMSNorm,
    Linear,
    MergedColumnParallelLinear,
    ShortConv,
    SSMDecay,
    activation,
    recurrent,
)
from sglang_plug.layers.moe import NAMES
from sglang_plug_models.common.blocks import CausalLM, Decoder, GatedMLP
from sglang_plug_models.common.hybrid import Hybrid, NoRopeDecoder
from sglang_plug_models.deepseek.latent_attention import LatentAttention, latent_shape
from sglang_plug_models.deepseek.model import BalancedRouter
from sglang_plug_models.moe import mixtral
from sglang_plug_models.moe.block import SparseMLP


class DeltaAttention(SSMDecay):
    """Kimi Delta Attention."""

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__(1, 1, config.linear_num_heads, 1)
        self.heads, self.dim, self.state = config.linear_num_heads, config.linear_head_dim, state + 1
        hidden, width = config.hidden_size, self.heads * self.dim
        channels = dict.fromkeys("qkv", width)
        self.sizes = (3 * width, self.heads, self.dim, self.dim)
        self.in_proj = MergedColumnParallelLinear(
            hidden, {**channels, "b": self.heads, "f_a": self.dim, "g_a": self.dim}, env
        )
        self.conv1d = ShortConv(3 * width, config.linear_conv_kernel_dim, env, state, parts=channels)
        self.f_b_proj = Linear(self.dim, width, env)
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.g_b_proj = Linear(self.dim, width, env)
        self.o_norm = GatedRMSNorm(self.dim, config.rms_norm_eps, activation_name="sigmoid")
        self.o_proj = Linear(width, hidden, env)
        self._activate = activation(config.hidden_act)
        self._rule = env.kernels.gated_delta_rule

    @staticmethod
    def shapes(config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of such a layer per sequence."""
        heads, dim = config.linear_num_heads, config.linear_head_dim
        conv = ShortConv.shape(3 * heads * dim, config.linear_conv_kernel_dim)
        return conv, StateShape(shape=(heads, dim, dim), dtype=torch.float32)

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return our parameter and shard for a checkpoint's name below this module."""
        rest = rest.removeprefix("forget_gate.")
        name, _, parameter = rest.partition(".")
        part, _, kind = name.rpartition("_")
        if kind == "proj" and part in self.in_proj.shards:
            return f"in_proj.{parameter}", part
        return (f"conv1d.{parameter}", part) if part and kind == "conv1d" else (rest, None)

    def forward(self, x: Tensor, angles: None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        states, shape = recurrent(batch), (-1, self.heads, self.dim)
        mixed, rate, forget, gate = self.in_proj(x).split_with_sizes(self.sizes, dim=-1)
        q, k, v = (part.view(shape) for part in self._activate(self.conv1d(mixed, batch)).chunk(3, dim=-1))
        forget = F.softplus(self.f_b_proj(forget).float() + self.dt_bias.float()).view(shape)
        decay = self.rate[0] * forget
        result = self._rule(q, k, v, decay, rate.sigmoid(), states.pool.states[self.state], states.spans)
        return self.o_proj(self.o_norm(result, self.g_b_proj(gate).view(shape)).flatten(1))


class SharedExpertsMLP(SparseMLP):
    """Chosen experts, and shared ones, which are one wide MLP."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        width = config.moe_intermediate_size
        names = {**NAMES, **mixtral.NAMES}
        super().__init__(config, env, BalancedRouter(config, env, index), width=width, names=names)
        self.shared_experts = GatedMLP(config, env, width=width * config.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return super().forward(x) + self.shared_experts(x)


class KimiLinear(Hybrid):
    """Kimi Linear."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **{name: ours for name, ours in CausalLM.packed.items() if ours[0] == "gate_up_proj"},
        "block_sparse_moe": ("mlp", None),
    }

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of delta attention."""
        return DeltaAttention.shapes(config)

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry of the attention layers: one key head, which caches a latent."""
        return replace(latent_shape(config), layers=cls.kv_layer_index(config, config.num_hidden_layers))

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return NoRopeDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build latent or delta attention."""
        if self.has_attention(config, index):
            return LatentAttention(config, env, self.kv_layer_index(config, index))
        return DeltaAttention(config, env, self.state_index(config, index))

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts and shared ones, or an MLP."""
        sparse = config.mlp_layer_types[index] == "sparse"
        return SharedExpertsMLP(config, env, index) if sparse else GatedMLP(config, env)
