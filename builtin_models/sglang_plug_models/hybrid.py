"""Language models whose layers keep a state instead of keys and values, or besides them. Not a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import RMSNorm
from sglang_plug_models.blocks import CausalLM, Decoder, SelfAttention

NO_ATTENTION = AttentionShape(heads=1, kv_heads=1, dim=64, layers=0)
"""Of models that keep no keys and values; a head of a width that every backend takes."""
UNSTATED_CONTEXT = 2**17
"""Most tokens of a sequence of a model to which all places are alike."""


class Hybrid(CausalLM):
    """A language model that says of each layer what it keeps."""

    @classmethod
    def attends(cls, config: Any, index: int) -> bool:
        """Whether layer ``index`` keeps keys and values."""
        return bool(config.layer_types[index] == "full_attention")

    @classmethod
    def recurs(cls, config: Any, index: int) -> bool:
        """Whether layer ``index`` keeps states."""
        return not cls.attends(config, index)

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """What each layer that recurs keeps of a sequence."""
        raise NotImplementedError(f"{cls.__name__} does not define layer_states(config)")

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Of the layers that attend."""
        text = cls.text_config(config)
        return replace(super().attention_shape(config), layers=cls.kv_place(text, text.num_hidden_layers))

    @classmethod
    def state_shapes(cls, config: Any) -> Sequence[StateShape]:
        """Of the layers that recur, one after the other."""
        text = cls.text_config(config)
        return cls.layer_states(text) * sum(cls.recurs(text, index) for index in range(text.num_hidden_layers))

    @classmethod
    def kv_place(cls, config: Any, index: int) -> int:
        """Which layer of the KV pool belongs to layer ``index``."""
        return sum(cls.attends(config, other) for other in range(index))

    @classmethod
    def state_place(cls, config: Any, index: int) -> int:
        """Which of ``state_shapes`` is the first of layer ``index``."""
        return len(cls.layer_states(config)) * sum(cls.recurs(config, other) for other in range(index))


class AttentionFree(Hybrid):
    """A language model that keeps states only."""

    @classmethod
    def attends(cls, config: Any, index: int) -> bool:
        """No layer."""
        return False

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Of no layer."""
        return NO_ATTENTION

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """As the configuration says, which it rarely does."""
        return int(getattr(config, "max_position_embeddings", None) or UNSTATED_CONTEXT)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return UnturnedDecoder(config, env, layers)


class SingleLayer(nn.Module):
    """A layer that is one thing, of normalised input.

    Args:
        norm: what normalises.
        mixer: the thing, of states, angles and batch.
        alone: it works on each token by itself, and is given states only.
    """

    def __init__(self, norm: RMSNorm, mixer: nn.Module, *, alone: bool = False) -> None:
        super().__init__()
        self.norm, self.mixer, self.alone = norm, mixer, alone

    def forward(self, x: Tensor, residual: Tensor | None, angles: Any, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """What it gives and the residual stream that this is still to be added to, both ``[T, hidden]``."""
        if residual is None:
            normed, residual = self.norm(x), x
        else:
            normed, residual = self.norm.add(x, residual)
        return self.mixer(normed) if self.alone else self.mixer(normed, angles, batch), residual


class UnturnedAttention(SelfAttention):
    """Attention without positions: what comes before it has told the order of tokens."""

    def forward(self, x: Tensor, angles: None, batch: ForwardBatch) -> Tensor:  # type: ignore[override]
        """``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        return self.o_proj(self.attention(q, k, v, batch).flatten(1))


class UnturnedDecoder(Decoder):
    """A decoder in which nothing asks for positions."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Nothing."""
        return nn.Identity()

    def angles(self, positions: Tensor, dtype: torch.dtype) -> None:
        """Nothing."""
