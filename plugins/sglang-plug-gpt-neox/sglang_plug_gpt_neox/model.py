"""GPT-NeoX. Parameter names equal the checkpoint's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import Attention, BuildEnv, ConfigError, ForwardBatch, Model
from sglang_plug.layers import Embedding, Linear, ParallelLMHead, Rope

tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_fast": tanh_gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "relu": F.relu,
    "silu": F.silu,
}


class SelfAttention(nn.Module):
    """Attention whose matrix contains query, key and value of each head in turn."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.num_attention_heads
        self.query_key_value = Linear(size, 3 * size, env, bias=config.attention_bias)
        self.dense = Linear(size, size, env, bias=config.attention_bias)
        self.attention = Attention(env, index, scale=(size // self.heads) ** -0.5)
        self.apply_rope = env.kernels.apply_rope

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.query_key_value(x).unflatten(-1, (self.heads, -1)).chunk(3, dim=-1)
        q, k = self.apply_rope(q, *angles), self.apply_rope(k, *angles)
        return self.dense(self.attention(q, k, v.contiguous(), batch).flatten(1))


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        if config.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act {config.hidden_act!r} is unknown; known: {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_h_to_4h = Linear(config.hidden_size, config.intermediate_size, env, bias=True)
        self.dense_4h_to_h = Linear(config.intermediate_size, config.hidden_size, env, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)))


class Layer(nn.Module):
    """Attention and MLP, both on the layer's input (parallel residual) or one after the other."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.parallel = config.use_parallel_residual
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = SelfAttention(config, env, index)
        self.mlp = MLP(config, env)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        attended = x + self.attention(self.input_layernorm(x), angles, batch)
        return attended + self.mlp(self.post_attention_layernorm(x if self.parallel else attended))


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.embed_in = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, env, index) for index in range(config.num_hidden_layers))
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.rope = Rope.of(config, config.hidden_size // config.num_attention_heads)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token: ``[T, hidden]``."""
        x = self.embed_in(batch.input_ids)
        angles = self.rope(batch.positions, x.dtype)
        for layer in self.layers:
            x = layer(x, angles, batch)
        return self.final_layer_norm(x)


class GPTNeoX(Model):
    """GPT-NeoX with an output matrix of its own (or tied to the embedding)."""

    packed = {"lm_head": ("embed_out", "")}  # the name in memory of recent transformers
    ignored = (".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")  # buffers of old checkpoints

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.gpt_neox = Decoder(config, env)
        tied = self.gpt_neox.embed_in if config.tie_word_embeddings else None
        self.embed_out = ParallelLMHead(config.hidden_size, config.vocab_size, env, tied=tied)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token: ``[T, hidden]``."""
        return self.gpt_neox(batch)

    def head(self, hidden: Tensor) -> Tensor:
        """Map ``[rows, hidden]`` to logits ``[rows, vocabulary]``."""
        return self.embed_out(hidden)
