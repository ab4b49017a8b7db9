"""Language models with layers that keep a recurrent state. Not a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import RMSNorm

from .blocks import CausalLM, Decoder, SelfAttention

NO_ATTENTION = AttentionShape(heads=1, kv_heads=1, dim=64, layers=0)
"""Geometry of models without keys and values; its head width is one that every backend supports."""
DEFAULT_CONTEXT_LENGTH = 2**17
"""Context length of models whose configuration states none."""


class Hybrid(CausalLM):
    """A language model whose layers cache keys and values, recurrent states, or both."""

    @classmethod
    def has_attention(cls, config: Any, index: int) -> bool:
        """Return True if layer ``index`` stores keys and values."""
        return bool(config.layer_types[index] == "full_attention")

    @classmethod
    def has_recurrent_state(cls, config: Any, index: int) -> bool:
        """Return True if layer ``index`` stores recurrent states."""
        return not cls.has_attention(config, index)

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of each recurrent layer per sequence."""
        raise NotImplementedError(f"{cls.__name__} does not define layer_states(config)")

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry of the attention layers."""
        text = cls.text_config(config)
        return replace(super().attention_shape(config), layers=cls.kv_layer_index(text, text.num_hidden_layers))

    @classmethod
    def state_shapes(cls, config: Any) -> Sequence[StateShape]:
        """Return the state shapes of all recurrent layers in order."""
        text = cls.text_config(config)
        return cls.layer_states(text) * sum(
            cls.has_recurrent_state(text, index) for index in range(text.num_hidden_layers)
        )

    @classmethod
    def kv_layer_index(cls, config: Any, index: int) -> int:
        """Return the index in the KV pool of layer ``index``."""
        return sum(cls.has_attention(config, other) for other in range(index))

    @classmethod
    def state_index(cls, config: Any, index: int) -> int:
        """Return the index in ``state_shapes`` of the first state of layer ``index``."""
        return len(cls.layer_states(config)) * sum(cls.has_recurrent_state(config, other) for other in range(index))


class AttentionFree(Hybrid):
    """A language model without attention."""

    @classmethod
    def has_attention(cls, config: Any, index: int) -> bool:
        """Return False for every layer."""
        return False

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return a geometry without layers."""
        return NO_ATTENTION

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """Return the configured context length, which is rarely given."""
        return int(getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT_LENGTH)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return NoRopeDecoder(config, env, layers)


class SingleLayer(nn.Module):
    """A layer of a single mixer on normalised input.

    Args:
        norm: normalises the layer's input.
        mixer: attention or a recurrence, called with hidden states, angles and batch, or an MLP.
        per_token: whether ``mixer`` is called with hidden states only, as an MLP is.
    """

    def __init__(self, norm: RMSNorm, mixer: nn.Module, *, per_token: bool = False) -> None:
        super().__init__()
        self.norm, self.mixer, self.per_token = norm, mixer, per_token

    def forward(self, x: Tensor, residual: Tensor | None, angles: Any, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the mixer's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.norm.add(x, residual)
        return self.mixer(normed) if self.per_token else self.mixer(normed, angles, batch), residual


class NoRopeAttention(SelfAttention):
    """Attention without positions: earlier layers encode the order of tokens."""

    def forward(self, x: Tensor, angles: None, batch: ForwardBatch) -> Tensor:  # type: ignore[override]
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        return self.o_proj(self.attention(q, k, v, batch).flatten(1))


class NoRopeDecoder(Decoder):
    """A decoder without positions."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return no tables."""
        return nn.Identity()

    def angles(self, positions: Tensor, dtype: torch.dtype) -> None:
        """Return no angles."""
