"""Gemma 2 (Gemma team, 2024) and Gemma 3 (Gemma team, 2025), text only.

Both scale the embeddings by the square root of their width, store a norm's weight as its distance from one, and
normalise before and after attention and MLP. Gemma 2 caps attention and final logits and alternates between layers with
a window and layers with full attention; Gemma 3 normalises queries and keys instead, has five layers with a window for
each without, and gives the two kinds rotations of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError, ForwardBatch
from sglang_plug.layers import RMSNorm, Rope
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, GatedMLP, SelfAttention, head_dim, window_of

norm = partial(RMSNorm, offset=1.0)

AnglesByKind = Mapping[str, Angles]
"""Angles for each entry of ``layer_types``."""


def attention(config: Any, env: BuildEnv, index: int, *, qk_norm: bool, softcap: float | None) -> SelfAttention:
    """Build the attention of layer ``index`` with the scale from ``query_pre_attn_scalar``."""
    return SelfAttention(
        config,
        env,
        index,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        qk_norm=qk_norm,
        norm=norm,
        window=window_of(config, index),
        scale=config.query_pre_attn_scalar**-0.5,
        softcap=softcap,
    )


class Layer(nn.Module):
    """A layer with norms before and after attention and MLP."""

    def __init__(self, config: Any, env: BuildEnv, kind: str, attention: SelfAttention) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.kind = kind
        self.input_layernorm = norm(width, eps, env)
        self.self_attn = attention
        self.post_attention_layernorm = norm(width, eps, env)
        self.pre_feedforward_layernorm = norm(width, eps, env)
        self.mlp = GatedMLP(config, env, activation=config.hidden_activation)
        self.post_feedforward_layernorm = norm(width, eps, env)

    def forward(
        self, x: Tensor, residual: Tensor | None, angles: AnglesByKind, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, stream = self.input_layernorm.add(x, residual)
        attended = self.post_attention_layernorm(self.self_attn(normed, angles[self.kind], batch))
        normed, stream = self.pre_feedforward_layernorm.add(attended, stream)
        return self.post_feedforward_layernorm(self.mlp(normed)), stream


class Ropes(nn.Module):
    """A rotary embedding for each kind of layer, or one for all."""

    def __init__(self, config: Any, served: int | None) -> None:
        super().__init__()
        parameters, longest, dim = config.rope_parameters, config.max_position_embeddings, head_dim(config)
        kinds = dict.fromkeys(config.layer_types)
        own = {kind: parameters.get(kind, parameters) for kind in kinds}
        self.ropes = nn.ModuleDict({kind: Rope(dim, own[kind], longest, served) for kind in kinds})

    def forward(self, positions: Tensor, dtype: torch.dtype) -> AnglesByKind:
        """Return cosines and sines of ``positions`` ``[T]`` for each kind of layer."""
        return {kind: rope(positions, dtype) for kind, rope in self.ropes.items()}


class Body(Decoder):
    """A decoder with embeddings scaled by the root of their width, rounded like the weights."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers, norm=norm)
        self.scale = float(torch.tensor(config.hidden_size**0.5, dtype=self.embed_tokens.weight.dtype))

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the rotary embeddings of every kind of layer."""
        return Ropes(config, env.context_length)

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[T]`` to ``[T, hidden]``."""
        return super().embed(tokens) * self.scale


class Gemma2(CausalLM):
    """Gemma 2."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        if config.use_bidirectional_attention:
            raise ConfigError("use_bidirectional_attention is not supported: only causal Gemma models are served")
        super().__init__(config, env)
        self.softcap: float | None = config.final_logit_softcapping

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return Body(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        return Layer(config, env, config.layer_types[index], self.attention(config, env, index))

    def attention(self, config: Any, env: BuildEnv, index: int) -> SelfAttention:
        """Build attention with capped logits."""
        return attention(config, env, index, qk_norm=False, softcap=config.attn_logit_softcapping)

    def head(self, hidden: Tensor) -> Tensor:
        """Compute capped logits ``[rows, vocabulary]``."""
        logits = super().head(hidden)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class Gemma3(Gemma2):
    """Gemma 3, text only."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> SelfAttention:
        """Build attention with normalised queries and keys."""
        return attention(config, env, index, qk_norm=True, softcap=None)
