"""Zamba2 (Glorioso et al., 2024): Mamba-2 in every layer, and before some of them one of a few shared blocks.

A block's input is the previous layer's output concatenated with the embeddings, twice as wide. It is used at several
layers, so it has as many indices in the KV pool, and for each of them low-rank adapters of some of its matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ConfigError, ForwardBatch, StateShape
from sglang_plug.layers import (
    GatedRMSNorm,
    Linear,
    MergedColumnParallelLinear,
    RMSNorm,
    Rope,
    RowParallelLinear,
    gated_activation,
)
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder
from sglang_plug_models.common.hybrid import Hybrid
from sglang_plug_models.common.state_space import Mamba2, Mamba2Shape

EPSILON = 1e-5
"""Epsilon of the norms in mixers."""


def shape_of(config: Any) -> Mamba2Shape:
    """Return the sizes of the mixers."""
    return Mamba2Shape(
        heads=config.n_mamba_heads,
        dim=config.mamba_headdim,
        groups=config.mamba_ngroups,
        state=config.mamba_d_state,
        width=config.mamba_d_conv,
    )


def adapters(config: Any, env: BuildEnv, kv_layers: list[int], size_in: int, size_out: int) -> nn.ModuleDict:
    """Build a low-rank adapter for each use of a block."""
    rank = config.adapter_rank
    return nn.ModuleDict(
        {
            str(kv_layer): nn.Sequential(Linear(size_in, rank, env), Linear(rank, size_out, env))
            for kv_layer in kv_layers
        }
    )


class SharedAttention(nn.Module):
    """Attention with several indices in the KV pool, on states twice as wide as the model's."""

    def __init__(self, config: Any, env: BuildEnv, kv_layers: list[int]) -> None:
        super().__init__()
        wide, self.dim = config.attention_hidden_size, config.attention_head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        parts = {name: count * self.dim for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
        self.qkv_proj = MergedColumnParallelLinear(wide, parts, env)
        self.o_proj = RowParallelLinear(heads * self.dim, config.hidden_size, env)
        scale = (self.dim / 2) ** -0.5
        self.attentions = nn.ModuleDict(
            {str(kv_layer): Attention(env, kv_layer, scale=scale) for kv_layer in kv_layers}
        )
        adapted = kv_layers if config.use_shared_attention_adapter else []
        self.linear_q_adapter_list = adapters(config, env, adapted, wide, parts["q"])
        self.linear_k_adapter_list = adapters(config, env, adapted, wide, parts["k"])
        self.linear_v_adapter_list = adapters(config, env, adapted, wide, parts["v"])

    def forward(self, x: Tensor, kv_layer: str, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, 2 * hidden]`` to ``[T, hidden]``."""
        q, k, v = self.qkv_proj.split(x)
        if kv_layer in self.linear_q_adapter_list:
            q = q + self.linear_q_adapter_list[kv_layer](x)
            k = k + self.linear_k_adapter_list[kv_layer](x)
            v = v + self.linear_v_adapter_list[kv_layer](x)
        q, k, v = (part.unflatten(-1, (-1, self.dim)) for part in (q, k, v))  # type: ignore[no-untyped-call]
        attention = self.attentions[kv_layer]
        assert isinstance(attention, Attention)
        result = attention(q, k, v, batch) if angles is None else attention.rotary(q, k, v, *angles, batch)
        return self.o_proj(result.flatten(1))


class SharedMLP(nn.Module):
    """A gated MLP."""

    def __init__(self, config: Any, env: BuildEnv, kv_layers: list[int]) -> None:
        super().__init__()
        width, bias = config.intermediate_size, config.add_bias_linear
        self.gate_up_proj = MergedColumnParallelLinear(config.hidden_size, {"gate": width, "up": width}, env, bias=bias)
        self.gate_up_proj_adapter_list = adapters(config, env, kv_layers, config.hidden_size, 2 * width)
        self.down_proj = RowParallelLinear(width, config.hidden_size, env, bias=bias)
        self._activate = gated_activation(config.hidden_act, env)

    def forward(self, x: Tensor, kv_layer: str) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.down_proj(self._activate(self.gate_up_proj(x) + self.gate_up_proj_adapter_list[kv_layer](x)))


class SharedBlock(nn.Module):
    """Attention and an MLP, without a residual stream."""

    def __init__(self, config: Any, env: BuildEnv, kv_layers: list[int]) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.attention_hidden_size, config.rms_norm_eps, env)
        self.self_attn = SharedAttention(config, env, kv_layers)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.feed_forward = SharedMLP(config, env, kv_layers)

    def forward(self, x: Tensor, first: Tensor, kv_layer: str, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; ``first`` are the embeddings."""
        attended = self.self_attn(self.input_layernorm(torch.cat((x, first), -1)), kv_layer, angles, batch)
        return self.feed_forward(self.pre_ff_layernorm(attended), kv_layer)


class MambaLayer(nn.Module):
    """A mixer whose input may include an addend that is not in the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__()
        shape = shape_of(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.mamba = Mamba2(
            config.hidden_size,
            shape,
            env,
            state,
            norm=GatedRMSNorm(shape.inner, EPSILON, groups=shape.groups, gate_first=True),
            bias=config.add_bias_linear,
            limits=(config.time_step_min, float("inf")),
        )

    def forward(self, x: Tensor, first: Tensor, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.mixed(x, x, batch)

    def mixed(self, x: Tensor, mixer_input: Tensor, batch: ForwardBatch) -> Tensor:
        """Return ``x`` plus the mixer's output of ``mixer_input``."""
        return x + self.mamba(self.input_layernorm(mixer_input), None, batch)


class HybridLayer(nn.Module):
    """A shared block and a mixer, which also receives the block's output."""

    def __init__(self, config: Any, env: BuildEnv, state: int, block: SharedBlock, kv_layer: int) -> None:
        super().__init__()
        self.shared_transformer, self.key = block, str(kv_layer)
        self.linear = Linear(config.hidden_size, config.hidden_size, env)
        self.mamba_decoder = MambaLayer(config, env, state)

    def forward(self, x: Tensor, first: Tensor, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        result = self.linear(self.shared_transformer(x, first, self.key, angles, batch))
        return self.mamba_decoder.mixed(x, x + result, batch)


class ZambaDecoder(Decoder):
    """A decoder whose layers also receive the embeddings."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed, if anything is rotated."""
        if not config.use_mem_rope:
            return nn.Identity()
        return Rope.of(config, config.attention_head_dim, env.context_length, whole=True)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles | None:
        """Return cosines and sines if anything is rotated."""
        return self.rope(positions, dtype) if isinstance(self.rope, Rope) else None

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.embed(batch.input_ids)
        x = x if batch.multimodal is None else batch.multimodal.merge_embeddings(x)
        first, angles = x, self.angles(batch.positions, x.dtype)
        for layer in self.layers:
            x = layer(x, first, angles, batch)
        result: Tensor = self.norm(x)
        return result


class Zamba2(Hybrid):
    """Zamba2."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **{name: ours for name, ours in CausalLM.packed.items() if ours[0] == "qkv_proj"},
        "final_layernorm": ("norm", None),
    }

    @classmethod
    def has_attention(cls, config: Any, index: int) -> bool:
        """Return True for layers with a shared block."""
        return bool(config.layer_types[index] == "hybrid")

    @classmethod
    def has_recurrent_state(cls, config: Any, index: int) -> bool:
        """Return True for every layer."""
        return True

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a mixer."""
        return shape_of(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return ZambaDecoder(config, env, layers)

    def layers(self, config: Any, env: BuildEnv) -> list[nn.Module]:
        """Build all layers, cycling through the shared blocks.

        Raises ``ConfigError`` for a checkpoint whose blocks are not shared.
        """
        if not config.tie_word_embeddings:
            raise ConfigError(
                "tie_word_embeddings=false is not supported for Zamba2, where it means that layers share no blocks"
            )
        kv_layers, count = self.kv_layer_index(config, config.num_hidden_layers), config.num_mem_blocks
        blocks = [
            SharedBlock(config, env, list(range(first, kv_layers, count))) for first in range(min(count, kv_layers))
        ]
        layers: list[nn.Module] = []
        for index in range(config.num_hidden_layers):
            state, kv_layer = self.state_index(config, index), self.kv_layer_index(config, index)
            if self.has_attention(config, index):
                layers.append(HybridLayer(config, env, state, blocks[kv_layer % count], kv_layer))
            else:
                layers.append(MambaLayer(config, env, state))
        return layers
