"""Llama 4 (Meta, 2025): experts next to a shared one, and three layers of chunked attention per full layer.

Full-attention layers have no positions; instead their queries grow with the logarithm of the position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import Attention, AttentionShape, BuildEnv, ForwardBatch
from sglang_plug.layers import Experts, MergedColumnParallelLinear, Router, RowParallelLinear
from sglang_plug_models.common.blocks import CausalLM, Decoder, GatedMLP, head_dim
from sglang_plug_models.common.chunked_attention import WIDTH, Parities, append_dims, parities, zero_parities
from sglang_plug_models.common.interleaved_rope import split_pairs
from sglang_plug_models.moe.block import router

EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
"""Suffixes of matrices that checkpoints store transposed."""


DECODER = "language_model."
"""Prefix of decoder weights in vision-language checkpoints."""


def chunk_of(config: Any) -> int | None:
    """Return the tokens of a chunk; ``None``: a sequence has only one."""
    chunk = config.attention_chunk_size
    looks = chunk is not None and "chunked_attention" in config.layer_types
    return int(chunk) if looks and chunk < config.max_position_embeddings else None


@dataclass(frozen=True, slots=True)
class PositionEncoding:
    """Position data of this step for the layers."""

    cos: Tensor
    sin: Tensor
    growth: Tensor
    """Factors ``[T, 1, 1]`` on queries without positions."""
    parities: Parities | None
    """Chunk parities; ``None``: no layer is chunked."""


class SelfAttention(nn.Module):
    """Attention with or without rotation and chunks."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.dim, bias = head_dim(config), config.attention_bias
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        parts = {name: count * self.dim for name, count in heads.items()}
        self.qkv_proj = MergedColumnParallelLinear(config.hidden_size, parts, env, bias=bias, heads=heads)
        self.o_proj = RowParallelLinear(parts["q"], config.hidden_size, env, bias=bias)
        self.heads, self.kv_heads = heads["q"] // env.ranks.size, max(1, heads["k"] // env.ranks.size)
        self.use_rope, self.eps = bool(config.no_rope_layers[index]), config.rms_norm_eps
        self.normalised = self.use_rope and config.use_qk_norm
        self.grows = config.attn_temperature_tuning and not self.use_rope
        self.chunked = config.layer_types[index] == "chunked_attention"
        window = chunk_of(config) if self.chunked else None
        self.attention = Attention(env, index, scale=self.dim**-0.5, window=window)

    def forward(self, x: Tensor, encoding: Any, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``; ``encoding`` is a ``PositionEncoding``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        qk, v = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
        if self.normalised:
            qk = (qk.float() * torch.rsqrt(qk.float().square().mean(-1, keepdim=True) + self.eps)).to(qk.dtype)
        if self.use_rope:
            qk = split_pairs(qk, self.dim)
        q, k = qk.tensor_split((self.heads,), dim=1)
        q = q * encoding.growth if self.grows else q
        if encoding.parities is not None:
            of_queries, of_keys = encoding.parities if self.chunked else zero_parities(x)
            q, k = append_dims(q, of_queries), append_dims(k, of_keys)
        if self.use_rope:
            return self.o_proj(self.attention.rotary(q, k, v, encoding.cos, encoding.sin, batch).flatten(1))
        return self.o_proj(self.attention(q, k, v, batch).flatten(1))


class SparseMLP(nn.Module):
    """Routed experts, whose inputs are scaled by the router's weights, and a shared expert."""

    def __init__(self, config: Any, env: BuildEnv, router: Router) -> None:
        super().__init__()
        width = config.intermediate_size
        self.router = router
        self.experts = Experts(config.hidden_size, width, router.experts, env, activation_name=config.hidden_act)
        self.shared_expert = GatedMLP(config, env, width=width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        experts, weights = self.router.choose(x)
        sent = (x[:, None] * weights[..., None].to(x.dtype)).flatten(0, 1)
        result = self.experts(sent, experts.flatten()[:, None], torch.ones_like(weights).flatten()[:, None])
        return self.shared_expert(x) + result.view(*experts.shape, -1).sum(1)


class SigmoidRouter(Router):
    """Router with independent sigmoid scores."""

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best experts and their scores."""
        scores, experts = logits.topk(self.chosen, dim=-1)
        return experts, scores.float().sigmoid()


class Body(Decoder):
    """A decoder whose layers also receive chunks and growth."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers)
        self.chunk, self.scale = chunk_of(config), head_dim(config) ** -0.5
        self.floor, self.growth = float(config.floor_scale), float(config.attn_scale)
        if config.use_qk_norm:
            rope: Any = self.rope
            rope.factor = 1.0  # normalised vectors have a fixed length

    def angles(self, positions: Tensor, dtype: torch.dtype) -> PositionEncoding:
        """Return the position data of ``positions`` ``[T]``."""
        cos, sin = self.rope(positions, dtype)
        growth = 1.0 + self.growth * torch.log1p(torch.floor((positions.float() + 1.0) / self.floor))
        chunk_parities = None if self.chunk is None else parities(positions, self.chunk, self.scale, dtype)
        return PositionEncoding(cos, sin, growth.to(dtype)[:, None, None], chunk_parities)


class Llama4(CausalLM):
    """Llama 4, text only."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {**CausalLM.packed, "feed_forward": ("mlp", None)}

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry; keys encode their chunk if sequences may have several."""
        config, shape = cls.text_config(config), super().attention_shape(config)
        if chunk_of(config) is None:
            return shape
        return replace(shape, dim=shape.dim + WIDTH, value_dim=shape.dim)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return Body(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention as ``layer_types`` and ``no_rope_layers`` define."""
        return SelfAttention(config, env, index)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts in the layers that ``moe_layers`` names."""
        if index not in config.moe_layers:
            return GatedMLP(config, env, width=config.intermediate_size_mlp)
        return SparseMLP(config, env, router(config, env, index, experts=config.num_local_experts, kind=SigmoidRouter))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``CausalLM``; experts' matrices are transposed."""
        super().load_weights(
            (name, weight.transpose(1, 2) if name.endswith(EXPERTS) else weight) for name, weight in weights
        )


class Llama4Text(Llama4):
    """The decoder of a vision-language checkpoint, whose other parts are ignored."""

    prefixes: ClassVar[Mapping[str, str]] = {DECODER: ""}

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config.text_config, env)

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Return the decoder's configuration."""
        return config.text_config

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load the decoder's weights by their names in the whole model."""
        own = ((name.removeprefix(DECODER), weight) for name, weight in weights if name.startswith(DECODER))
        super().load_weights(own)
