"""Falcon (Almazrouei et al., 2023): parallel attention and MLP, and few keys for many queries.

Falcon 7B has one key head and one norm for both parts; the later architecture has several key heads and a norm for
each part. The first models have ALiBi instead of rotary positions.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from sglang_plug import Attention, AttentionShape, BuildEnv, ForwardBatch
from sglang_plug.layers import Embedding, Linear, Rope, activation
from sglang_plug_models.common.alibi import Alibi, BiasedAttention, alibi_shape, slopes
from sglang_plug_models.common.blocks import Angles, TransformerLM


def key_heads(config: Any) -> int:
    """Return the number of key heads."""
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


class SelfAttention(nn.Module):
    """Projections of attention whose matrix contains queries, key and value of each key head in turn."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, key_heads(config)
        self.dim, self.group = config.hidden_size // self.heads, self.heads // self.kv_heads
        rows = self.kv_heads * (self.group + 2) * self.dim
        self.query_key_value = Linear(config.hidden_size, rows, env, bias=config.bias)
        self.dense = Linear(config.hidden_size, config.hidden_size, env, bias=config.bias)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``[T, hidden]`` to queries, keys and values, ``[T, heads, dim]`` each."""
        parts = self.query_key_value(x).view(-1, self.kv_heads, self.group + 2, self.dim)
        return parts[:, :, :-2].flatten(1, 2), parts[:, :, -2], parts[:, :, -1]


class RotaryAttention(SelfAttention):
    """Attention with rotary positions."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__(config, env)
        self.attention = Attention(env, index, scale=self.dim**-0.5)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.dense(self.attention.rotary(*self.parts(x), *angles, batch).flatten(1))


class AlibiAttention(SelfAttention):
    """Attention with ALiBi's biases instead of rotary positions."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__(config, env)
        self.attention = BiasedAttention(env, index, heads=self.heads, scale=self.dim**-0.5)

    def forward(self, x: Tensor, biases: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.parts(x)
        k, v = (tensor.repeat_interleave(self.group, dim=1) for tensor in (k, v))  # each head has biases of its own
        return self.dense(self.attention(q, k, v, biases, batch).flatten(1))


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.dense_h_to_4h = Linear(config.hidden_size, config.ffn_hidden_size, env, bias=config.bias)
        self.dense_4h_to_h = Linear(config.ffn_hidden_size, config.hidden_size, env, bias=config.bias)
        self.activation = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))


class Layer(nn.Module):
    """Attention and an MLP; the kinds of layers differ in their norms."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.self_attention = (AlibiAttention if config.alibi else RotaryAttention)(config, env, index)
        self.mlp = MLP(config, env)


class TwoNormLayer(Layer):
    """Parallel attention and MLP, each on input that it normalises separately."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__(config, env, index)
        self.ln_attn, self.ln_mlp = norm(config), norm(config)

    def forward(self, x: Tensor, encoding: Angles | Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; ``encoding`` is rotary angles or ALiBi's biases."""
        return x + self.self_attention(self.ln_attn(x), encoding, batch) + self.mlp(self.ln_mlp(x))


class OneNormLayer(Layer):
    """Parallel attention and MLP on the same normalised input."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__(config, env, index)
        self.input_layernorm = norm(config)

    def forward(self, x: Tensor, encoding: Angles | Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; ``encoding`` is rotary angles or ALiBi's biases."""
        normed = self.input_layernorm(x)
        return x + self.self_attention(normed, encoding, batch) + self.mlp(normed)


class SequentialLayer(Layer):
    """Attention, then the MLP, each on normalised input."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__(config, env, index)
        self.input_layernorm, self.post_attention_layernorm = norm(config), norm(config)

    def forward(self, x: Tensor, encoding: Angles | Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; ``encoding`` is rotary angles or ALiBi's biases."""
        x = x + self.self_attention(self.input_layernorm(x), encoding, batch)
        return x + self.mlp(self.post_attention_layernorm(x))


def norm(config: Any) -> nn.LayerNorm:
    """Build a norm of a layer."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)


def layer_class(config: Any) -> type[Layer]:
    """Return the kind of layer that the configuration describes."""
    if config.new_decoder_architecture:
        return TwoNormLayer if config.num_ln_in_parallel_attn in (None, 2) else OneNormLayer
    return OneNormLayer if config.parallel_attn else SequentialLayer


class Decoder(nn.Module):
    """Embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(layer_class(config)(config, env, index) for index in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        heads = config.num_attention_heads
        self.position_encoding: nn.Module
        if config.alibi:
            self.position_encoding = Alibi(slopes(heads), rounded=True)
        else:
            self.position_encoding = Rope.of(config, config.hidden_size // heads, env.context_length, whole=True)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.word_embeddings(batch.input_ids)
        encoding = self.position_encoding(batch.positions, x.dtype)
        for layer in self.h:
            x = layer(x, encoding, batch)
        result: Tensor = self.ln_f(x)
        return result


class Falcon(TransformerLM):
    """Falcon with rotary positions or ALiBi."""

    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)

    def __init__(self, config: Any, env: BuildEnv) -> None:
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.word_embeddings)

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry with the checkpoint's key heads; with ALiBi, one per head and room for biases."""
        if config.alibi:
            return alibi_shape(config)
        heads = config.num_attention_heads
        return AttentionShape(
            heads=heads,
            kv_heads=key_heads(config),
            dim=config.hidden_size // heads,
            layers=config.num_hidden_layers,
        )
