"""GPT-J (Wang and Komatsuzaki, 2021): parallel attention and MLP after one norm, and partial interleaved rope.

CodeGen (Nijkamp et al., 2022) stores the same weights in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ForwardBatch
from sglang_plug.layers import Embedding, Linear, MergedColumnParallelLinear, Rope, activation
from sglang_plug_models.common.blocks import Angles, TransformerLM
from sglang_plug_models.common.interleaved_rope import split_pairs

CODEGEN_BLOCKS = 4
"""Number of blocks in CodeGen's matrix: queries, values and keys of a quarter of the heads each."""


class SelfAttention(nn.Module):
    """Multi-head attention without biases."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.rotary_dim = config.rotary_dim or width // self.heads
        self.qkv_proj = self.projection(width, env)
        self.out_proj = Linear(width, width, env)
        self.attention = Attention(env, index, scale=(width // self.heads) ** -0.5)

    def projection(self, width: int, env: BuildEnv) -> Linear:
        """Build the matrix of queries, keys and values."""
        return MergedColumnParallelLinear(width, {"q": width, "k": width, "v": width}, env)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``[T, hidden]`` to queries, keys and values, ``[T, heads, dim]`` each."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        return q, k, v

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.parts(x)
        q, k = split_pairs(q, self.rotary_dim), split_pairs(k, self.rotary_dim)
        return self.out_proj(self.attention.rotary(q, k, v, *angles, batch).flatten(1))


class CodeGenAttention(SelfAttention):
    """The same attention from one stored matrix."""

    def projection(self, width: int, env: BuildEnv) -> Linear:
        """Build the matrix as it is stored."""
        return Linear(width, 3 * width, env)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``[T, hidden]`` to queries, keys and values, ``[T, heads, dim]`` each."""
        shape = (CODEGEN_BLOCKS, 3, self.heads // CODEGEN_BLOCKS, -1)
        q, v, k = (row.flatten(1, 2) for row in self.qkv_proj(x).unflatten(-1, shape).unbind(2))
        return q, k, v


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width = config.n_inner or 4 * config.hidden_size
        self.fc_in = Linear(config.hidden_size, width, env, bias=True)
        self.fc_out = Linear(width, config.hidden_size, env, bias=True)
        self.activation = activation(config.activation_function)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.fc_out(self.activation(self.fc_in(x)))


class Layer(nn.Module):
    """Attention and MLP on the same normalised input."""

    def __init__(self, config: Any, env: BuildEnv, attention: SelfAttention) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = attention
        self.mlp = MLP(config, env)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        normed = self.ln_1(x)
        result: Tensor = x + self.attn(normed, angles, batch) + self.mlp(normed)
        return result


class Decoder(nn.Module):
    """Embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv, attention: type[SelfAttention]) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size)
        layers = range(config.num_hidden_layers)
        self.h = nn.ModuleList(Layer(config, env, attention(config, env, index)) for index in layers)
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        rotary_dim = config.rotary_dim or config.hidden_size // config.num_attention_heads
        self.rope = Rope(rotary_dim, {"rope_theta": 10000.0}, config.max_position_embeddings)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.wte(batch.input_ids)
        angles = self.rope(batch.positions, x.dtype)
        for layer in self.h:
            x = layer(x, angles, batch)
        result: Tensor = self.ln_f(x)
        return result


class GPTJ(TransformerLM):
    """GPT-J."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
    }
    ignored: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias", ".attn.embed_positions")
    attention: ClassVar[type[SelfAttention]] = SelfAttention

    def __init__(self, config: Any, env: BuildEnv) -> None:
        decoder = Decoder(config, env, self.attention)
        super().__init__(config, env, decoder, decoder.wte, bias=True)


class CodeGen(GPTJ):
    """CodeGen."""

    packed = {}
    ignored = (".attn.causal_mask", ".attn.embed_positions")
    attention = CodeGenAttention
