"""GPT-Neo (Black et al., 2021): GPT-2 with windows in some layers and unscaled query-key products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ForwardBatch
from sglang_plug.layers import Embedding, Linear, MergedColumnParallelLinear, activation
from sglang_plug_models.common.blocks import TransformerLM


class SelfAttention(nn.Module):
    """Multi-head attention; a ``local`` layer attends to the last ``window_size`` tokens."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_heads
        self.qkv_proj = MergedColumnParallelLinear(width, {"q": width, "k": width, "v": width}, env)
        self.out_proj = Linear(width, width, env, bias=True)
        window = config.window_size if config.attention_layers[index] == "local" else None
        self.attention = Attention(env, index, scale=1.0, window=window)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        return self.out_proj(self.attention(q, k, v, batch).flatten(1))


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width = config.intermediate_size or 4 * config.hidden_size
        self.c_fc = Linear(config.hidden_size, width, env, bias=True)
        self.c_proj = Linear(width, config.hidden_size, env, bias=True)
        self.activation = activation(config.activation_function)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.c_proj(self.activation(self.c_fc(x)))


class Layer(nn.Module):
    """Attention and MLP, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = nn.ModuleDict({"attention": SelfAttention(config, env, index)})
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config, env)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        x = x + self.attn["attention"](self.ln_1(x), batch)
        result: Tensor = x + self.mlp(self.ln_2(x))
        return result


class Decoder(nn.Module):
    """Token and position embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size)
        self.wpe = Embedding(config.max_position_embeddings, config.hidden_size)
        self.h = nn.ModuleList(Layer(config, env, index) for index in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.wte(batch.input_ids) + self.wpe(batch.positions)
        for layer in self.h:
            x = layer(x, batch)
        result: Tensor = self.ln_f(x)
        return result


class GPTNeo(TransformerLM):
    """GPT-Neo."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
    }
    ignored: ClassVar[tuple[str, ...]] = (".attention.bias", ".attention.masked_bias")  # masks of older checkpoints

    def __init__(self, config: Any, env: BuildEnv) -> None:
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.wte)
