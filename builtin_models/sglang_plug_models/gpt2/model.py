"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, and transposed matrices."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ConfigError, ForwardBatch
from sglang_plug.layers import (
    ColumnParallelLinear,
    Embedding,
    Linear,
    MergedColumnParallelLinear,
    RowParallelLinear,
    activation,
)
from sglang_plug.layers.linear import checked
from sglang_plug_models.common.blocks import TransformerLM


class Transposed(Linear):
    """A matrix that the checkpoint stores transposed, as ``[in, out]``."""

    unquantized = True

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Load a shard like ``Linear``."""
        if tensor.dim() == 2:
            tensor = checked(tensor, self.whole_shape(parameter)).T
        super().load_shard(parameter, tensor, shard)

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape ``[in, out]`` or ``[out]`` of all ranks."""
        return self._all_ranks(parameter)[::-1]


class TransposedPacked(Transposed, MergedColumnParallelLinear):
    """Several transposed matrices with one input, concatenated in the checkpoint."""


class TransposedColumn(Transposed, ColumnParallelLinear):
    """A transposed matrix whose rows are split over ranks."""


class TransposedRow(Transposed, RowParallelLinear):
    """A transposed matrix whose columns are split over ranks."""


class SelfAttention(nn.Module):
    """Multi-head attention with query, key and value in one matrix."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, heads = config.n_embd, config.n_head
        parts = ("q", "k", "v")
        self.heads = heads // env.ranks.size
        self.c_attn = TransposedPacked(
            width, dict.fromkeys(parts, width), env, bias=True, heads=dict.fromkeys(parts, heads)
        )
        self.c_proj = TransposedRow(width, width, env, bias=True)
        scale = (width // heads) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= index + 1
        self.attention = Attention(env, index, scale=scale)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        return self.c_proj(self.attention(q, k, v, batch).flatten(1))


class MLP(nn.Module):
    """MLP without a gate: up projection, activation, down projection."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width = config.n_inner or 4 * config.n_embd
        self.c_fc = TransposedColumn(config.n_embd, width, env, bias=True)
        self.c_proj = TransposedRow(width, config.n_embd, env, bias=True)
        self.activation = activation(config.activation_function)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.c_proj(self.activation(self.c_fc(x)))


class Layer(nn.Module):
    """Attention and MLP, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = SelfAttention(config, env, index)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config, env)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        x = x + self.attn(self.ln_1(x), batch)
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """Token and position embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd, env)
        self.wpe = Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Layer(config, env, index) for index in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.wte(batch.input_ids) + self.wpe(batch.positions)
        for layer in self.h:
            x = layer(x, batch)
        result: Tensor = self.ln_f(x)
        return result


class GPT2(TransformerLM):
    """GPT-2 and related models."""

    ignored = (".attn.bias", ".attn.masked_bias")  # masks that older checkpoints carry

    def __init__(self, config: Any, env: BuildEnv) -> None:
        if config.add_cross_attention:
            raise ConfigError("add_cross_attention is not supported: only GPT-2 models without an encoder are served")
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.wte)
