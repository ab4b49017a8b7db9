"""Falcon-H1 (TII, 2025): parallel attention and Mamba-2 mixer in every layer, and multipliers everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import GatedRMSNorm, MergedColumnParallelLinear, RMSNorm, RowParallelLinear, activation
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, SelfAttention
from sglang_plug_models.common.hybrid import Hybrid
from sglang_plug_models.common.state_space import UNLIMITED, Mamba2, mamba2_shape


class ScaledMamba2(Mamba2):
    """A mixer with a scaled input and scaled parts of its projection."""

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        shape, norm = mamba2_shape(config), None
        if config.mamba_rms_norm:
            first = not config.mamba_norm_before_gate
            norm = GatedRMSNorm(shape.inner, config.rms_norm_eps, groups=shape.groups, gate_first=first)
        super().__init__(
            config.hidden_size,
            shape,
            env,
            state,
            norm=norm,
            activation_name=config.hidden_act,
            bias=config.mamba_proj_bias,
            out_bias=config.projectors_bias,
            conv_bias=config.mamba_conv_bias,
            limits=config.time_step_limit or UNLIMITED,
        )
        sizes = (shape.inner, shape.inner, *(shape.groups * shape.state,) * 2, shape.heads)
        factors = [torch.full((size,), factor) for size, factor in zip(sizes, config.ssm_multipliers, strict=True)]
        self.register_buffer("multipliers", torch.cat(factors), persistent=False)
        self.scale = config.ssm_in_multiplier

    def project(self, x: Tensor) -> Tensor:
        """Project like ``Mamba2``, with multipliers."""
        return self.in_proj(x * self.scale) * self.multipliers


class ScaledAttention(SelfAttention):
    """Attention with scaled keys."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        bias = config.attention_bias
        super().__init__(config, env, index, qkv_bias=bias, out_bias=bias)
        self.scale = config.key_multiplier

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        return self.o_proj(self.attention.rotary(q, k * self.scale, v, *angles, batch).flatten(1))


class ScaledMLP(nn.Module):
    """A gated MLP with scaled gate and output."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width, bias = config.intermediate_size, config.mlp_bias
        self.gate_up_proj = MergedColumnParallelLinear(config.hidden_size, {"gate": width, "up": width}, env, bias=bias)
        self.down_proj = RowParallelLinear(width, config.hidden_size, env, bias=bias)
        self.of_gate, self.of_all = config.mlp_multipliers
        self._activate = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        gate, up = self.gate_up_proj.split(x)
        return self.down_proj(self._activate(gate * self.of_gate) * up) * self.of_all


class Layer(nn.Module):
    """Parallel attention and mixer, whose outputs are added, then the MLP."""

    def __init__(self, config: Any, env: BuildEnv, index: int, state: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.mamba = ScaledMamba2(config, env, state)
        self.self_attn = ScaledAttention(config, env, index)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.feed_forward = ScaledMLP(config, env)
        self.of_mamba, self.into_attention = config.ssm_out_multiplier, config.attention_in_multiplier
        self.of_attention = config.attention_out_multiplier

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.input_layernorm.add(x, residual)
        attended = self.self_attn(normed * self.into_attention, angles, batch) * self.of_attention
        mixed = self.mamba(normed, angles, batch) * self.of_mamba + attended
        normed, residual = self.pre_ff_layernorm.add(mixed, residual)
        return self.feed_forward(normed), residual


class ScaledDecoder(Decoder):
    """A decoder with scaled embeddings."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers)
        self.scale = config.embedding_multiplier

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[T]`` to ``[T, hidden]``."""
        return super().embed(tokens) * self.scale


class FalconH1(Hybrid):
    """Falcon-H1."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {**CausalLM.packed, "final_layernorm": ("norm", None)}

    @classmethod
    def has_attention(cls, config: Any, index: int) -> bool:
        """Return True for every layer."""
        return True

    @classmethod
    def has_recurrent_state(cls, config: Any, index: int) -> bool:
        """Return True for every layer."""
        return True

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a Mamba-2 mixer."""
        return mamba2_shape(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return ScaledDecoder(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return Layer(config, env, index, self.state_index(config, index))

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        return super().head(hidden) * self.config.lm_head_multiplier
