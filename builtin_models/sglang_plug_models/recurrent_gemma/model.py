"""RecurrentGemma (Botev et al., 2024), of the Griffin architecture (De et al., 2024).

Two of three layers have a real-gated linear recurrent unit behind a short convolution, each channel separately. The
others attend in a window and rotate half of each head.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import Linear, RMSNorm, Rope, ShortConv, activation, recurrent
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, GatedMLP, SelfAttention
from sglang_plug_models.common.hybrid import Hybrid

norm = partial(RMSNorm, offset=1.0)
CONTEXT = 8192
"""Training context length in tokens, which the configuration does not state."""
STEEPNESS = 8.0
MIN_STEP = 1e-20


def longest(config: Any) -> int:
    """Return the maximum length of a sequence in tokens."""
    return int(getattr(config, "max_position_embeddings", None) or CONTEXT)


class GatedUnit(nn.Module):
    """``S = a * S + sqrt(1 - a**2) * gate * x`` of each channel, ``a`` and ``gate`` made of blocks of channels."""

    rates: Tensor

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__()
        blocks = config.num_attention_heads
        width = config.lru_width // blocks
        self.recurrent_param = nn.Parameter(torch.empty(config.lru_width))
        self.input_gate_weight = nn.Parameter(torch.empty(blocks, width, width))
        self.input_gate_bias = nn.Parameter(torch.empty(blocks, width))
        self.recurrent_gate_weight = nn.Parameter(torch.empty(blocks, width, width))
        self.recurrent_gate_bias = nn.Parameter(torch.empty(blocks, width))
        self.register_buffer("rates", torch.full((config.lru_width, 1), -1.0, dtype=torch.float32), persistent=False)
        self.state = state
        self._scan = env.kernels.selective_scan

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, channels]`` to ``[T, channels]``."""
        states = recurrent(batch)
        gate = self._gate(x, self.input_gate_weight, self.input_gate_bias)
        slowed = self._gate(x, self.recurrent_gate_weight, self.recurrent_gate_bias).float()
        step = (STEEPNESS * slowed * F.softplus(self.recurrent_param.float())).clamp_min(MIN_STEP)
        share = torch.where(batch.positions[:, None] == 0, 1.0, (-torch.expm1(-2 * step)).sqrt())
        ones = step.new_ones(len(x), 1)
        inputs = (x * gate).float() * share / step
        result = self._scan(inputs, step, self.rates, ones, ones, states.pool.states[self.state], states.spans)
        return result.to(x.dtype)

    @staticmethod
    def _gate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        blocks = x.view(len(x), *bias.shape).transpose(0, 1)
        return torch.baddbmm(bias[:, None], blocks, weight).transpose(0, 1).flatten(1).sigmoid()


class RecurrentBlock(nn.Module):
    """``out(unit(convolution(x)) * activation(y))``; ``x`` and ``y`` are projected from the input."""

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.lru_width
        self.linear_y = Linear(hidden, width, env, bias=True)
        self.linear_x = Linear(hidden, width, env, bias=True)
        self.conv_1d = ShortConv(width, config.conv1d_width, env, state, bias=True)
        self.rg_lru = GatedUnit(config, env, state + 1)
        self.linear_out = Linear(width, hidden, env, bias=True)
        self._activate = activation(config.hidden_activation)

    @staticmethod
    def shapes(config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of such a layer per sequence."""
        unit = StateShape(shape=(config.lru_width, 1), dtype=torch.float32)
        return ShortConv.shape(config.lru_width, config.conv1d_width), unit

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        scanned = self.rg_lru(self.conv_1d(self.linear_x(x), batch), batch)
        return self.linear_out(scanned * self._activate(self.linear_y(x)))


class Layer(nn.Module):
    """A recurrent block or attention, and an MLP."""

    def __init__(self, config: Any, env: BuildEnv, mixer: nn.Module) -> None:
        super().__init__()
        self.temporal_pre_norm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.temporal_block = mixer
        self.channel_pre_norm = norm(config.hidden_size, config.rms_norm_eps, env)
        width, name = config.intermediate_size // 2, config.hidden_activation
        self.mlp_block = GatedMLP(config, env, bias=True, width=width, activation=name)

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.temporal_pre_norm.add(x, residual)
        normed, residual = self.channel_pre_norm.add(self.temporal_block(normed, angles, batch), residual)
        return self.mlp_block(normed), residual


class Body(Decoder):
    """A decoder with scaled embeddings and partial rotation of each head."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers, norm=norm)
        self.scale = float(torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16, device="cpu"))

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed."""
        return Rope(config.head_dim, config.rope_parameters, longest(config), env.context_length)

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[T]`` to ``[T, hidden]``."""
        return super().embed(tokens) * self.scale


class RecurrentGemma(Hybrid):
    """RecurrentGemma."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {**CausalLM.packed, "final_norm": ("norm", None)}

    @classmethod
    def has_attention(cls, config: Any, index: int) -> bool:
        """Return True for layers with attention."""
        return bool(config.layer_types[index] == "sliding_attention")

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a recurrent block."""
        return RecurrentBlock.shapes(config)

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """Return the configured context length, which is rarely given."""
        return longest(config)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return Body(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        if not self.has_attention(config, index):
            return Layer(config, env, RecurrentBlock(config, env, self.state_index(config, index)))
        layer_index, bias = self.kv_layer_index(config, index), config.attention_bias
        window = config.sliding_window
        return Layer(config, env, SelfAttention(config, env, layer_index, qkv_bias=bias, out_bias=True, window=window))

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        cap = self.config.logits_soft_cap
        return torch.tanh(super().head(hidden) / cap) * cap
