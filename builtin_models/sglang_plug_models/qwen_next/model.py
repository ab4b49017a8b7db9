"""Qwen3-Next (Qwen team, 2025) and Qwen3.5 (Qwen team, 2026).

Three of four layers are gated DeltaNets: a short convolution of queries, keys and values, then linear attention by the
gated delta rule, whose output is normalised and gated. The others are attention with normalised queries and keys,
partial rotation of each head, and a gate on the output. Norms store the distance of their weight from one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import Attention, BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import (
    GatedRMSNorm,
    Linear,
    MergedColumnParallelLinear,
    RMSNorm,
    Rope,
    RowParallelLinear,
    ShortConv,
    SSMDecay,
    activation,
    recurrent,
)
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, GatedMLP
from sglang_plug_models.common.hybrid import Hybrid
from sglang_plug_models.moe.qwen_moe import SharedExpertMLP, is_sparse

norm = partial(RMSNorm, offset=1.0)


class GatedAttention(nn.Module):
    """Attention with an output gate, which is projected together with the queries.

    ``layer`` is its index in the KV pool.
    """

    def __init__(self, config: Any, env: BuildEnv, layer: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        parts = {"q": 2 * self.heads * self.dim, "k": self.kv_heads * self.dim, "v": self.kv_heads * self.dim}
        bias = config.attention_bias
        self.qkv_proj = MergedColumnParallelLinear(config.hidden_size, parts, env, bias=bias)
        self.o_proj = RowParallelLinear(self.heads * self.dim, config.hidden_size, env, bias=bias)
        self.q_norm = norm(self.dim, config.rms_norm_eps, env)
        self.k_norm = norm(self.dim, config.rms_norm_eps, env)
        self.attention = Attention(env, layer, scale=self.dim**-0.5)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        wide, k, v = self.qkv_proj.split(x)
        q, gate = wide.view(-1, self.heads, 2 * self.dim).chunk(2, dim=-1)
        k, v = (part.view(-1, self.kv_heads, self.dim) for part in (k, v))
        result = self.attention.rotary(self.q_norm(q), self.k_norm(k), v, *angles, batch)
        return self.o_proj(result.flatten(1) * torch.sigmoid(gate.flatten(1)))


class DeltaNet(SSMDecay):
    """A gated DeltaNet (Yang et al., 2024) in Qwen3.5's layout: each of its inputs has a separate matrix.

    ``state`` is the index of its first state among the model's states.
    """

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__(config.linear_num_value_heads)
        self.key_heads, self.heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.key_dim, self.dim = config.linear_key_head_dim, config.linear_value_head_dim
        self.keys, self.values = self.key_heads * self.key_dim, self.heads * self.dim
        channels = 2 * self.keys + self.values
        self.in_proj = MergedColumnParallelLinear(config.hidden_size, self.parts(), env)
        # Checkpoints often store this matrix with more bits than the others.
        self.rate_proj = MergedColumnParallelLinear(config.hidden_size, self.rate_parts(), env)
        self.conv1d = ShortConv(channels, config.linear_conv_kernel_dim, env, state)
        self.dt_bias = nn.Parameter(torch.empty(self.heads))
        self.norm = GatedRMSNorm(self.dim, config.rms_norm_eps)
        self.out_proj = Linear(self.values, config.hidden_size, env)
        self.state = state + 1
        self._activate = activation(config.hidden_act)
        self._rule = env.kernels.gated_delta_rule

    def parts(self) -> dict[str, int]:
        """Return the rows of the matrices of its inputs."""
        return {"qkv": 2 * self.keys + self.values, "z": self.values}

    def rate_parts(self) -> dict[str, int]:
        """Return the rows of the matrices from which rate and decay are computed."""
        return {"b": self.heads, "a": self.heads}

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project ``[T, hidden]`` to queries, keys and values ``[T, channels]``, gates ``[T, values]`` and rates.

        The inputs of rate and decay are ``[T, heads]`` each.
        """
        qkv, gate = self.in_proj.split(x)
        rate, decay = self.rate_proj.split(x)
        return qkv, gate, rate, decay

    def rates(self, x: Tensor) -> Tensor:
        """Compute the delta rule's rates ``[T, heads]``: the share of a key's old value that is replaced."""
        return x.sigmoid()

    @staticmethod
    def shapes(config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of such a layer per sequence."""
        key_dim, dim = config.linear_key_head_dim, config.linear_value_head_dim
        channels = 2 * config.linear_num_key_heads * key_dim + config.linear_num_value_heads * dim
        return (
            ShortConv.shape(channels, config.linear_conv_kernel_dim),
            StateShape(shape=(config.linear_num_value_heads, key_dim, dim), dtype=torch.float32),
        )

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        mixed, gate, rate, decay = self.inputs(x)
        mixed = self._activate(self.conv1d(mixed, batch))
        q, k, v = mixed.split_with_sizes((self.keys, self.keys, self.values), dim=-1)
        states = recurrent(batch)
        result = self._rule(
            q.view(-1, self.key_heads, self.key_dim),
            k.view(-1, self.key_heads, self.key_dim),
            v.view(-1, self.heads, self.dim),
            self.rate * F.softplus(decay.float() + self.dt_bias.float()),
            self.rates(rate),
            states.pool.states[self.state],
            states.spans,
        )
        return self.out_proj(self.norm(result, gate.view(-1, self.heads, self.dim)).flatten(1))


class InterleavedDeltaNet(DeltaNet):
    """A DeltaNet in Qwen3-Next's layout: the rows of one key head are contiguous."""

    def parts(self) -> dict[str, int]:
        """Return the rows of the matrices of its inputs."""
        return {"qkvz": 2 * (self.keys + self.values)}

    def rate_parts(self) -> dict[str, int]:
        """Return the rows of the matrices from which rate and decay are computed."""
        return {"ba": 2 * self.heads}

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the inputs like ``DeltaNet``."""
        group = self.heads // self.key_heads
        wide, narrow = (project(x).view(len(x), self.key_heads, -1) for project in (self.in_proj, self.rate_proj))
        q, k, v, gate = wide.split_with_sizes((*(self.key_dim,) * 2, *(group * self.dim,) * 2), dim=-1)
        rate, decay = narrow.chunk(2, dim=-1)
        mixed = torch.cat([part.flatten(1) for part in (q, k, v)], -1)
        return mixed, gate.flatten(1), rate.flatten(1), decay.flatten(1)


class Layer(nn.Module):
    """Attention or a DeltaNet, and an MLP."""

    def __init__(self, config: Any, env: BuildEnv, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.has_attention = isinstance(mixer, GatedAttention)
        if self.has_attention:
            self.self_attn = mixer
        else:
            self.linear_attn = mixer
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.mlp = mlp

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.input_layernorm.add(x, residual)
        mixed = (self.self_attn if self.has_attention else self.linear_attn)(normed, angles, batch)
        normed, residual = self.post_attention_layernorm.add(mixed, residual)
        return self.mlp(normed), residual


class PartialRopeDecoder(Decoder):
    """A decoder that rotates part of each head."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers, norm=norm)

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed."""
        return Rope.of(config, config.head_dim, env.context_length)


class QwenHybrid(Hybrid):
    """A language model with DeltaNet and attention layers."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **CausalLM.packed,
        **{f"in_proj_{part}": ("in_proj", part) for part in ("qkv", "z", "qkvz")},
        **{f"in_proj_{part}": ("rate_proj", part) for part in ("b", "a", "ba")},
    }
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, "mtp.")
    net: ClassVar[type[DeltaNet]] = DeltaNet

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of each DeltaNet."""
        return DeltaNet.shapes(config)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return PartialRopeDecoder(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        mixer: nn.Module
        if self.has_attention(config, index):
            mixer = GatedAttention(config, env, self.kv_layer_index(config, index))
        else:
            mixer = self.net(config, env, self.state_index(config, index))
        return Layer(config, env, mixer, self.mlp(config, env, index))


class Qwen3Next(QwenHybrid):
    """Qwen3-Next: experts and a shared one."""

    net = InterleavedDeltaNet

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts and a shared one, or an ordinary MLP."""
        return SharedExpertMLP(config, env, index) if is_sparse(config, index) else GatedMLP(config, env)


class Qwen35(QwenHybrid):
    """Qwen3.5, dense."""


class Qwen35Moe(QwenHybrid):
    """Qwen3.5 with experts and a shared one in every layer."""

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts and a shared one."""
        return SharedExpertMLP(config, env, index)
