"""Blocks shared by BERT-like encoders. Not a plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ConfigError, ForwardBatch, Model, Pooling
from sglang_plug.layers import Embedding, Linear, MergedColumnParallelLinear, activation


class Embeddings(nn.Module):
    """The sum of a token's, its position's and its segment's embedding, normalised."""

    def __init__(self, config: Any, first: int) -> None:
        super().__init__()
        kind = getattr(config, "position_embedding_type", None) or "absolute"
        if kind != "absolute":
            raise ConfigError(f"position_embedding_type {kind!r} is not supported, only 'absolute'")
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.first = first
        """Row of ``position_embeddings`` for a text's first token."""

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Map token, position and segment ids, each ``[T]``, to ``[T, hidden]``."""
        x = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        result: Tensor = self.LayerNorm(x + self.position_embeddings(positions + self.first))
        return result


class ResidualProjection(nn.Module):
    """A projection that is added to the residual stream, followed by a norm."""

    def __init__(self, config: Any, env: BuildEnv, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, config.hidden_size, env, bias=True)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """``[T, width]`` and ``[T, hidden]`` to ``[T, hidden]``."""
        result: Tensor = self.LayerNorm(self.dense(x) + residual)
        return result


class Heads(nn.Module):
    """Bidirectional attention."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.count, width = config.num_attention_heads, config.hidden_size
        self.qkv = MergedColumnParallelLinear(width, {"q": width, "k": width, "v": width}, env, bias=True)
        self.attention = Attention(env, index, scale=(width // self.count) ** -0.5, causal=False)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.count, -1)).unbind(1)
        return self.attention(q, k, v, batch).flatten(1)


class SelfAttention(nn.Module):
    """Attention, added to its input."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.heads = Heads(config, env, index)
        self.output = ResidualProjection(config, env, config.hidden_size)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        result: Tensor = self.output(self.heads(x, batch), x)
        return result


class Dense(nn.Module):
    """A matrix with a bias, nested under the name ``dense``."""

    def __init__(self, config: Any, env: BuildEnv, width: int) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, width, env, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, width]``."""
        result: Tensor = self.dense(x)
        return result


class Layer(nn.Module):
    """Attention, then an MLP; each is added to its input and the sum normalised."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, env, index)
        self.intermediate = Dense(config, env, config.intermediate_size)
        self.output = ResidualProjection(config, env, config.intermediate_size)
        self.activation = activation(config.hidden_act)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        x = self.attention(x, batch)
        result: Tensor = self.output(self.activation(self.intermediate(x)), x)
        return result


class Layers(nn.Module):
    """A stack of layers."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config, env, index) for index in range(config.num_hidden_layers))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        for layer in self.layer:
            x = layer(x, batch)
        return x


class Body(nn.Module):
    """Embeddings and layers; some heads begin with the pooler, which reads a text's first hidden state."""

    def __init__(self, config: Any, env: BuildEnv, first: int, *, pooler: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings(config, first)
        self.encoder = Layers(config, env)
        self.pooler = Dense(config, env, config.hidden_size) if pooler else None

    def forward(self, batch: ForwardBatch, segments: Tensor) -> Tensor:
        """Return the hidden states of every token, ``[T, hidden]``."""
        x = self.embeddings(batch.input_ids, batch.positions, segments)
        result: Tensor = self.encoder(x, batch)
        return result


class Encoder(Model):
    """A model of whole texts.

    By default a text's vector is its normalised first hidden state, of the token that is prepended for this purpose.
    """

    default_pooling: ClassVar[Pooling] = Pooling(mode="cls")
    packed: ClassVar[dict[str, tuple[str, str | None]]] = {
        "bert": ("model", None),
        "roberta": ("model", None),
        "self": ("heads", None),
        "query": ("qkv", "q"),
        "key": ("qkv", "k"),
        "value": ("qkv", "v"),
        "gamma": ("weight", None),
        "beta": ("bias", None),
    }
    ignored: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.")
    has_pooler: ClassVar[bool] = False

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.model = Body(config, env, self.first_position(config), pooler=self.has_pooler)

    @classmethod
    def first_position(cls, config: Any) -> int:
        """Return the row of the position embeddings for a text's first token."""
        return 0

    @classmethod
    def context_length(cls, config: Any) -> int:
        """Return the number of available positions."""
        return int(config.max_position_embeddings) - cls.first_position(config)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every token, ``[T, hidden]``."""
        return self.model(batch, self.segments(batch))

    def segments(self, batch: ForwardBatch) -> Tensor:
        """Return the segment of each token in a pair of texts, 0 or 1, ``[T]``."""
        return torch.zeros_like(batch.input_ids)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``Model``; checkpoints without a head leave the family's name out."""
        roots = ("embeddings.", "encoder.", "pooler.")
        super().load_weights((f"model.{name}" if name.startswith(roots) else name, weight) for name, weight in weights)
