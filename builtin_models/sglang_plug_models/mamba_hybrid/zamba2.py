"""Zamba2 (Glorioso et al., 2024): Mamba-2 in every layer, and before some of them one of a few shared blocks.

A block is given what comes from the layer before together with the embeddings, twice as wide. It attends in several
layers, so it has as many places in the KV pool, and for each of them low-rank adapters of some of its matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ConfigError, ForwardBatch, StateShape
from sglang_plug.layers import GatedRMSNorm, Linear, Packed, RMSNorm, Rope, Row, gated_activation
from sglang_plug_models.blocks import Angles, CausalLM, Decoder
from sglang_plug_models.hybrid import Hybrid
from sglang_plug_models.state_space import Mamba2, Mamba2Shape

EPSILON = 1e-5
"""Of the norms in mixers."""


def shape_of(config: Any) -> Mamba2Shape:
    """Sizes of the mixers."""
    return Mamba2Shape(
        heads=config.n_mamba_heads,
        dim=config.mamba_headdim,
        groups=config.mamba_ngroups,
        state=config.mamba_d_state,
        width=config.mamba_d_conv,
    )


def adapters(config: Any, env: BuildEnv, places: list[int], size_in: int, size_out: int) -> nn.ModuleDict:
    """One for each of a block's places."""
    rank = config.adapter_rank
    return nn.ModuleDict(
        {str(place): nn.Sequential(Linear(size_in, rank, env), Linear(rank, size_out, env)) for place in places}
    )


class SharedAttention(nn.Module):
    """Attention at several places of the KV pool, on states twice as wide as the model's."""

    def __init__(self, config: Any, env: BuildEnv, places: list[int]) -> None:
        super().__init__()
        wide, self.dim = config.attention_hidden_size, config.attention_head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        parts = {name: count * self.dim for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
        self.qkv_proj = Packed(wide, parts, env)
        self.o_proj = Row(heads * self.dim, config.hidden_size, env)
        scale = (self.dim / 2) ** -0.5
        self.attentions = nn.ModuleDict({str(place): Attention(env, place, scale=scale) for place in places})
        adapted = places if config.use_shared_attention_adapter else []
        self.linear_q_adapter_list = adapters(config, env, adapted, wide, parts["q"])
        self.linear_k_adapter_list = adapters(config, env, adapted, wide, parts["k"])
        self.linear_v_adapter_list = adapters(config, env, adapted, wide, parts["v"])
        self.turns = config.use_mem_rope

    def forward(self, x: Tensor, place: str, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """``[T, 2 * hidden]`` to ``[T, hidden]``."""
        q, k, v = self.qkv_proj.split(x)
        if place in self.linear_q_adapter_list:
            q = q + self.linear_q_adapter_list[place](x)
            k = k + self.linear_k_adapter_list[place](x)
            v = v + self.linear_v_adapter_list[place](x)
        q, k, v = (part.unflatten(-1, (-1, self.dim)) for part in (q, k, v))  # type: ignore[no-untyped-call]
        attention = self.attentions[place]
        assert isinstance(attention, Attention)
        found = attention(q, k, v, batch) if angles is None else attention.rotary(q, k, v, *angles, batch)
        return self.o_proj(found.flatten(1))


class SharedMLP(nn.Module):
    """A gated MLP."""

    def __init__(self, config: Any, env: BuildEnv, places: list[int]) -> None:
        super().__init__()
        width, bias = config.intermediate_size, config.add_bias_linear
        self.gate_up_proj = Packed(config.hidden_size, {"gate": width, "up": width}, env, bias=bias)
        self.gate_up_proj_adapter_list = adapters(config, env, places, config.hidden_size, 2 * width)
        self.down_proj = Row(width, config.hidden_size, env, bias=bias)
        self._activate = gated_activation(config.hidden_act, env)

    def forward(self, x: Tensor, place: str) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        return self.down_proj(self._activate(self.gate_up_proj(x) + self.gate_up_proj_adapter_list[place](x)))


class SharedBlock(nn.Module):
    """Attention and an MLP, without a residual stream."""

    def __init__(self, config: Any, env: BuildEnv, places: list[int]) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.attention_hidden_size, config.rms_norm_eps, env)
        self.self_attn = SharedAttention(config, env, places)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.feed_forward = SharedMLP(config, env, places)

    def forward(self, x: Tensor, first: Tensor, place: str, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``; ``first`` are the embeddings."""
        attended = self.self_attn(self.input_layernorm(torch.cat((x, first), -1)), place, angles, batch)
        return self.feed_forward(self.pre_ff_layernorm(attended), place)


class MambaLayer(nn.Module):
    """A mixer, whose input something may be added to that is not in the residual stream."""

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
        """``[T, hidden]`` to ``[T, hidden]``."""
        return self.mixed(x, x, batch)

    def mixed(self, x: Tensor, wanted: Tensor, batch: ForwardBatch) -> Tensor:
        """``x``, and what the mixer makes of ``wanted``."""
        return x + self.mamba(self.input_layernorm(wanted), None, batch)


class HybridLayer(nn.Module):
    """A shared block, and a mixer that is given what it makes too."""

    def __init__(self, config: Any, env: BuildEnv, state: int, block: SharedBlock, place: int) -> None:
        super().__init__()
        self.shared_transformer, self.key = block, str(place)
        self.linear = Linear(config.hidden_size, config.hidden_size, env)
        self.mamba_decoder = MambaLayer(config, env, state)

    def forward(self, x: Tensor, first: Tensor, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        found = self.linear(self.shared_transformer(x, first, self.key, angles, batch))
        return self.mamba_decoder.mixed(x, x + found, batch)


class ZambaDecoder(Decoder):
    """A decoder whose layers are given the embeddings too."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """What ``angles`` works with, if anything is rotated."""
        if not config.use_mem_rope:
            return nn.Identity()
        return Rope.of(config, config.attention_head_dim, env.context_length, whole=True)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles | None:
        """Cosines and sines, if anything is rotated."""
        return self.rope(positions, dtype) if isinstance(self.rope, Rope) else None

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token, ``[T, hidden]``."""
        x = self.embed(batch.input_ids)
        x = x if batch.seen is None else batch.seen.into(x)
        first, angles = x, self.angles(batch.positions, x.dtype)
        for layer in self.layers:
            x = layer(x, first, angles, batch)
        found: Tensor = self.norm(x)
        return found


class Zamba2(Hybrid):
    """Zamba2."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **{name: ours for name, ours in CausalLM.packed.items() if ours[0] == "qkv_proj"},
        "final_layernorm": ("norm", None),
    }

    @classmethod
    def attends(cls, config: Any, index: int) -> bool:
        """Layers with a shared block."""
        return bool(config.layer_types[index] == "hybrid")

    @classmethod
    def recurs(cls, config: Any, index: int) -> bool:
        """Every layer."""
        return True

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Of a mixer."""
        return shape_of(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return ZambaDecoder(config, env, layers)

    def layers(self, config: Any, env: BuildEnv) -> list[nn.Module]:
        """All layers, with blocks in turn.

        Raises ``ConfigError`` for a checkpoint whose blocks are not shared.
        """
        if not config.tie_word_embeddings:
            raise ConfigError(
                "tie_word_embeddings is false, which in Zamba2 means blocks of each layer's own: not served"
            )
        places, count = self.kv_place(config, config.num_hidden_layers), config.num_mem_blocks
        blocks = [SharedBlock(config, env, list(range(first, places, count))) for first in range(min(count, places))]
        found: list[nn.Module] = []
        for index in range(config.num_hidden_layers):
            state, place = self.state_place(config, index), self.kv_place(config, index)
            if self.attends(config, index):
                found.append(HybridLayer(config, env, state, blocks[place % count], place))
            else:
                found.append(MambaLayer(config, env, state))
        return found
