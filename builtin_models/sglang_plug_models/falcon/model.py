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

PositionEncoding = Angles | Tensor
"""What the layers need of positions: rotary angles, or ALiBi's biases."""


def key_heads(config: Any) -> int:
    """Return the number of key heads."""
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


class SelfAttention(nn.Module):
    """Attention whose matrix contains queries, key and value of each key head in turn."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, heads, self.kv_heads = config.hidden_size, config.num_attention_heads, key_heads(config)
        self.dim, self.group = width // heads, heads // self.kv_heads
        rows = self.kv_heads * (self.group + 2) * self.dim
        self.query_key_value = Linear(width, rows, env, bias=config.bias)
        self.dense = Linear(width, width, env, bias=config.bias)
        scale = self.dim**-0.5
        self.attention: Attention | BiasedAttention
        if config.alibi:
            self.attention = BiasedAttention(env, index, heads=heads, scale=scale)
        else:
            self.attention = Attention(env, index, scale=scale)

    def forward(self, x: Tensor, encoding: PositionEncoding, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        parts = self.query_key_value(x).view(-1, self.kv_heads, self.group + 2, self.dim)
        q, k, v = parts[:, :, :-2].flatten(1, 2), parts[:, :, -2], parts[:, :, -1]
        return self.dense(self._attended(q, k, v, encoding, batch).flatten(1))

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, encoding: PositionEncoding, batch: ForwardBatch) -> Tensor:
        if isinstance(self.attention, Attention):
            cos, sin = encoding
            return self.attention.rotary(q, k, v, cos, sin, batch)
        assert isinstance(encoding, Tensor)
        k, v = (tensor.repeat_interleave(self.group, dim=1) for tensor in (k, v))  # each head has biases of its own
        result: Tensor = self.attention(q, k, v, encoding, batch)
        return result


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
    """Attention and MLP, parallel or sequential."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()

        def norm() -> nn.LayerNorm:
            return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)

        self.parallel = config.new_decoder_architecture or config.parallel_attn
        self.self_attention = SelfAttention(config, env, index)
        self.mlp = MLP(config, env)
        self.ln_attn = self.ln_mlp = self.input_layernorm = self.post_attention_layernorm = None
        if config.new_decoder_architecture and config.num_ln_in_parallel_attn in (None, 2):
            self.ln_attn, self.ln_mlp = norm(), norm()
        else:
            self.input_layernorm = norm()
            self.post_attention_layernorm = None if self.parallel else norm()

    def forward(self, x: Tensor, encoding: PositionEncoding, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        if self.ln_attn is not None and self.ln_mlp is not None:
            return x + self.self_attention(self.ln_attn(x), encoding, batch) + self.mlp(self.ln_mlp(x))
        assert self.input_layernorm is not None
        normed = self.input_layernorm(x)
        attended = x + self.self_attention(normed, encoding, batch)
        after = self.post_attention_layernorm
        return attended + self.mlp(normed if after is None else after(attended))


class Decoder(nn.Module):
    """Embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(Layer(config, env, index) for index in range(config.num_hidden_layers))
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
