"""Multi-head latent attention (DeepSeek-AI, 2024).

Keys and values of all heads are linear in one short vector per token, its latent. Only the latent is cached, next to a
rotary key that the heads share. Attention works on the latents: instead of expanding each of them to keys, a head's
query is multiplied by the transposed expansion, and its value is expanded once, after attention. To the backend this is
one key head, whose values are a prefix of its keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import (
    Attention,
    AttentionShape,
    BuildEnv,
    Collectives,
    ConfigError,
    ForwardBatch,
    Matrix,
    Quantization,
    shard_slice,
)
from sglang_plug.layers import ColumnParallelLinear, Linear, RMSNorm, RowParallelLinear, Unpacking
from sglang_plug_models.common.blocks import Angles

EPSILON = 1e-6
"""Epsilon of the norms on latents, independent of ``rms_norm_eps``."""


def latent_shape(config: Any) -> AttentionShape:
    """Return the geometry with one key head: a latent followed by the rotary key."""
    return AttentionShape(
        heads=config.num_attention_heads,
        kv_heads=1,
        dim=config.kv_lora_rank + config.qk_rope_head_dim,
        value_dim=config.kv_lora_rank,
        values_in_keys=True,
        layers=config.num_hidden_layers,
    )


def softmax_scale(config: Any) -> float:
    """Return one over the root of a query's width, with YaRN's temperature if the checkpoint sets it."""
    rope, width = getattr(config, "rope_parameters", None) or {}, config.qk_nope_head_dim + config.qk_rope_head_dim
    stretched = rope.get("rope_type", "default") != "default" and rope.get("factor", 1.0) > 1
    share = rope.get("mscale_all_dim") or 0.0
    temperature = 0.1 * share * math.log(rope["factor"]) + 1.0 if stretched else 1.0
    return float(width**-0.5 * temperature**2)


class Expansion(nn.Module):
    """Expansion of a latent to each head's key and value.

    ``weight`` is ``[heads * (key_dim + value_dim), rank]``, with the heads of this rank.
    """

    def __init__(self, rank: int, heads: int, key_dim: int, value_dim: int, ranks: Collectives) -> None:
        super().__init__()
        width = key_dim + value_dim
        self._own, self._rows = shard_slice(heads * width, ranks, units=heads, label="heads"), heads * width
        self.heads, self.key_dim, self.value_dim = heads // ranks.size, key_dim, value_dim
        self.weight = nn.Parameter(torch.empty(self.heads * width, rank))
        self._unpacking: Unpacking | None = None

    def quantize_weights(self, name: str, checkpoint_names: Sequence[str], quantization: Quantization) -> bool:
        """Ask ``quantization`` for the checkpoint's format; such weights are dequantized at load time.

        Returns False, since nothing is multiplied in fewer bits.
        """
        (rows, columns), dtype = self.weight.shape, self.weight.dtype
        scheme = quantization.scheme(
            Matrix(name=name, checkpoint_names=checkpoint_names, size_in=columns, size_out=rows, dtype=dtype)
        )
        if scheme is not None and scheme.stored:
            if scheme.dense is None:
                raise ConfigError(f"{quantization.name!r} cannot dequantize {name!r}, which this model needs")
            self._unpacking = Unpacking(self, {"": scheme})
        return False

    def make_room(self) -> None:
        """Do nothing: a weight without memory at this point never gets any."""

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the checkpoint's tensor. Raises ``ValueError`` if the shapes differ."""
        result: Tensor | None = tensor
        if self._unpacking is None:
            if tensor.shape[:1] == (self._rows,):
                result = tensor[self._own]
        else:
            tensor = self._unpacking.stored_as(parameter).own_rows(tensor, self._own)
            held, dense = self._unpacking.add("", "", parameter, tensor), self._unpacking.schemes[""].dense
            result = None if held is None or dense is None else dense(held)
            parameter = self._unpacking.weight
        if result is not None:
            if parameter.shape != result.shape:
                raise ValueError(f"expected shape {tuple(parameter.shape)}, found {tuple(result.shape)}")
            parameter.copy_(result)

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of all ranks' weights, if it is not quantized."""
        return (self._rows, *parameter.shape[1:]) if self._unpacking is None else tuple(parameter.shape)

    def pack_weights(self) -> None:
        """Replace the stored form by the weight."""
        if self._unpacking is not None:
            self._unpacking.finish()
            self._unpacking = None

    def compress(self, queries: Tensor) -> Tensor:
        """Transform queries ``[T, heads, key_dim]`` to act on latents instead of keys, ``[T, heads, rank]``."""
        return torch.bmm(queries.transpose(0, 1), self._heads()[:, : self.key_dim]).transpose(0, 1)

    def expand(self, latents: Tensor) -> Tensor:
        """Expand a latent of each head, ``[T, heads, rank]``, to its value, ``[T, heads, value_dim]``."""
        return torch.bmm(latents.transpose(0, 1), self._heads()[:, self.key_dim :].transpose(1, 2)).transpose(0, 1)

    def _heads(self) -> Tensor:
        return self.weight.view(self.heads, self.key_dim + self.value_dim, -1)


class LatentAttention(nn.Module):
    """Attention of many heads on one latent per token; queries may use a latent, too."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.attention_bias
        heads, self.rank = config.num_attention_heads, config.kv_lora_rank
        self.heads = heads // env.ranks.size
        self.qk_nope_head_dim, self.qk_rope_head_dim = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.qk_head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        width = heads * self.qk_head_dim
        self.q_lora = config.q_lora_rank is not None
        if self.q_lora:
            self.q_a_proj = Linear(hidden, config.q_lora_rank, env, bias=bias)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, EPSILON, env)
            self.q_b_proj = ColumnParallelLinear(config.q_lora_rank, width, env, heads=heads)
        else:
            self.q_proj = ColumnParallelLinear(hidden, width, env, heads=heads)
        self.kv_a_proj_with_mqa = Linear(hidden, self.rank + self.qk_rope_head_dim, env, bias=bias)
        self.kv_a_layernorm = RMSNorm(self.rank, EPSILON, env)
        self.kv_b_proj = Expansion(self.rank, heads, self.qk_nope_head_dim, config.v_head_dim, env.ranks)
        self.o_proj = RowParallelLinear(heads * config.v_head_dim, hidden, env, bias=bias)
        self.attention = Attention(env, index, scale=softmax_scale(config))
        self.interleaved = getattr(config, "rope_interleave", True)
        self._rope = env.kernels.apply_rope

    def forward(self, x: Tensor, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; without angles, nothing is rotated."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if self.q_lora else self.q_proj(x)
        q = q.view(-1, self.heads, self.qk_head_dim)
        q_nope, q_rope = q.split((self.qk_nope_head_dim, self.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((self.rank, self.qk_rope_head_dim), dim=-1)
        rotated = torch.cat((q_rope, k_rope[:, None]), dim=1)
        if self.interleaved:  # any order of the dimensions that queries and keys share is right
            rotated = rotated.view(-1, self.heads + 1, self.qk_rope_head_dim // 2, 2).transpose(-1, -2).flatten(-2)
        rotated = rotated if angles is None else self._rope(rotated, *angles)
        q_rope, k_rope = rotated.tensor_split((self.heads,), dim=1)
        keys = torch.cat((self.kv_a_layernorm(latent)[:, None], k_rope), dim=-1)
        queries = torch.cat((self.kv_b_proj.compress(q_nope), q_rope), dim=-1)
        result = self.attention(queries, keys, keys[..., : self.rank], batch)
        return self.o_proj(self.kv_b_proj.expand(result).flatten(1))
