"""Bloom (BigScience Workshop, 2022): ALiBi, a norm after the embeddings, and biases everywhere."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch
from sglang_plug.layers import Embedding, Linear, activation
from sglang_plug_models.common.alibi import Alibi, BiasedAttention, alibi_shape, slopes
from sglang_plug_models.common.blocks import TransformerLM


class SelfAttention(nn.Module):
    """Attention whose matrix contains query, key and value of each head in turn."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.query_key_value = Linear(width, 3 * width, env, bias=True)
        self.dense = Linear(width, width, env, bias=True)
        self.attention = BiasedAttention(env, index, heads=self.heads, scale=(width // self.heads) ** -0.5)

    def forward(self, x: Tensor, biases: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.query_key_value(x).unflatten(-1, (self.heads, 3, -1)).unbind(2)
        return self.dense(self.attention(q, k, v, biases, batch).flatten(1))


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width = 4 * config.hidden_size
        self.dense_h_to_4h = Linear(config.hidden_size, width, env, bias=True)
        self.dense_4h_to_h = Linear(width, config.hidden_size, env, bias=True)
        self.activation = activation("gelu_pytorch_tanh")

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))


class Layer(nn.Module):
    """Attention and MLP on normalised input; the residual is the input or the normalised input."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.adds_to_normed = config.apply_residual_connection_post_layernorm
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.self_attention = SelfAttention(config, env, index)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config, env)

    def forward(self, x: Tensor, biases: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        normed = self.input_layernorm(x)
        x = (normed if self.adds_to_normed else x) + self.self_attention(normed, biases, batch)
        normed = self.post_attention_layernorm(x)
        result: Tensor = (normed if self.adds_to_normed else x) + self.mlp(normed)
        return result


class Decoder(nn.Module):
    """Embeddings and their norm, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.word_embeddings_layernorm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.h = nn.ModuleList(Layer(config, env, index) for index in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.alibi = Alibi(slopes(heads) * (width // heads) ** 0.5)  # added to scaled logits

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.word_embeddings_layernorm(self.word_embeddings(batch.input_ids))
        biases = self.alibi(batch.positions, x.dtype)
        for layer in self.h:
            x = layer(x, biases, batch)
        result: Tensor = self.ln_f(x)
        return result


class Bloom(TransformerLM):
    """Bloom and Bloomz."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.word_embeddings)

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry with room for biases."""
        return alibi_shape(config)
