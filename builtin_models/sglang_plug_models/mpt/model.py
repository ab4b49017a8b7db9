"""MPT (MosaicML, 2023): ALiBi, and no biases."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch
from sglang_plug.layers import Embedding, Linear, activation
from sglang_plug_models.common.alibi import Alibi, BiasedAttention, alibi_shape
from sglang_plug_models.common.blocks import TransformerLM


def slopes(heads: int, greatest: float) -> Tensor:
    """Return ALiBi slopes ``[heads]`` float32: powers of two down to ``2 ** -greatest``.

    If the number of heads is no power of two, the new slopes of the next power of two come first.
    """
    whole = 2 ** math.ceil(math.log2(heads))
    series = 2.0 ** (torch.arange(1, whole + 1, dtype=torch.float32, device="cpu") * (-greatest / whole))
    return series if whole == heads else torch.cat((series[1::2], series[::2]))[:heads]


def scale_of(config: Any) -> float:
    """Return the factor on the query-key products."""
    configured = config.attn_config.softmax_scale
    return float(configured) if configured else (config.hidden_size / config.num_attention_heads) ** -0.5


class SelfAttention(nn.Module):
    """Attention with query, key and value in one matrix, clipped if the checkpoint says so."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.Wqkv = Linear(width, 3 * width, env)
        self.out_proj = Linear(width, width, env)
        self.bound = config.attn_config.clip_qkv
        self.attention = BiasedAttention(env, index, heads=self.heads, scale=scale_of(config))

    def forward(self, x: Tensor, biases: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.Wqkv(x)
        if self.bound:
            qkv = qkv.clamp(-self.bound, self.bound)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).unbind(1)
        return self.out_proj(self.attention(q, k, v, biases, batch).flatten(1))


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.up_proj = Linear(config.hidden_size, 4 * config.hidden_size, env)
        self.down_proj = Linear(4 * config.hidden_size, config.hidden_size, env)
        self.activation = activation("gelu")

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.down_proj(self.activation(self.up_proj(x)))


class Layer(nn.Module):
    """Attention and MLP, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon, bias=False)
        self.attn = SelfAttention(config, env, index)
        self.norm_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon, bias=False)
        self.ffn = MLP(config, env)

    def forward(self, x: Tensor, biases: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        x = x + self.attn(self.norm_1(x), biases, batch)
        return x + self.ffn(self.norm_2(x))


class Decoder(nn.Module):
    """Embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Layer(config, env, index) for index in range(config.num_hidden_layers))
        self.norm_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon, bias=False)
        steepness = slopes(config.num_attention_heads, config.attn_config.alibi_bias_max)
        self.alibi = Alibi(steepness / scale_of(config))  # added to scaled logits

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.wte(batch.input_ids)
        biases = self.alibi(batch.positions, x.dtype)
        for layer in self.blocks:
            x = layer(x, biases, batch)
        result: Tensor = self.norm_f(x)
        return result


class Mpt(TransformerLM):
    """MPT with ALiBi."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.wte)

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry with room for biases."""
        return alibi_shape(config)
