"""DBRX (Databricks, 2024): four of sixteen experts in every layer, and clipped queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from sglang_plug import Attention, AttentionShape, BuildEnv, ConfigError, ForwardBatch
from sglang_plug.layers import Embedding, Experts, MergedColumnParallelLinear, Rope, Router, RowParallelLinear
from sglang_plug_models.common.blocks import Angles, TransformerLM

MATRICES = {"w1": "gate", "v1": "up", "w2": "down"}
STACKED = tuple(f".experts.mlp.{name}" for name in MATRICES)
"""Suffixes of matrices that stack all experts."""


class SelfAttention(nn.Module):
    """Grouped-query attention with one clipped projection."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, heads, kv_heads = config.d_model, config.n_heads, config.attn_config.kv_n_heads
        self.dim, self.clip = width // heads, config.attn_config.clip_qkv
        of_parts = {"q": heads, "k": kv_heads, "v": kv_heads}
        parts = {name: count * self.dim for name, count in of_parts.items()}
        self.Wqkv = MergedColumnParallelLinear(width, parts, env, heads=of_parts)
        self.out_proj = RowParallelLinear(width, width, env)
        self.heads, self.kv_heads = heads // env.ranks.size, max(1, kv_heads // env.ranks.size)
        self.attention = Attention(env, index, scale=self.dim**-0.5)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv: Tensor = self.Wqkv(x)
        if self.clip is not None:
            qkv = qkv.clamp(-self.clip, self.clip)
        qkv = qkv.view(-1, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        return self.out_proj(self.attention.rotary(q, k, v, *angles, batch).flatten(1))


class NormedRouter(Router):
    """Router whose probabilities are divided by their norm of some order."""

    order: float | None = None
    """Order of the norm; ``None``: no normalisation."""

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best experts of ``logits`` ``[T, experts]`` and their weights."""
        experts, weights = super().select(logits)
        return experts, weights if self.order is None else weights / weights.norm(self.order, dim=-1, keepdim=True)


class Block(nn.Module):
    """Attention and experts, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, ffn = config.d_model, config.ffn_config
        if not 1 <= ffn.moe_top_k <= ffn.moe_num_experts:
            raise ConfigError(f"moe_top_k is {ffn.moe_top_k}, but the model has {ffn.moe_num_experts} experts")
        router = NormedRouter(width, ffn.moe_num_experts, ffn.moe_top_k, env, layer=index, normalise=False)
        router.order = ffn.moe_normalize_expert_weights
        experts = Experts(
            width,
            ffn.ffn_hidden_size,
            ffn.moe_num_experts,
            env,
            names=MATRICES,
            activation_name=ffn.ffn_act_fn.get("name", "silu"),
        )
        self.norm_attn_norm = nn.ModuleDict(
            {
                "norm_1": nn.LayerNorm(width, bias=False),
                "attn": SelfAttention(config, env, index),
                "norm_2": nn.LayerNorm(width, bias=False),
            }
        )
        self.ffn = nn.ModuleDict(
            {"router": nn.ModuleDict({"layer": router}), "experts": nn.ModuleDict({"mlp": experts})}
        )
        self._choose, self._experts = router.choose, experts

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        parts = self.norm_attn_norm
        x = x + parts["attn"](parts["norm_1"](x), angles, batch)
        normed = parts["norm_2"](x)
        result: Tensor = x + self._experts(normed, *self._choose(normed))
        return result


class Decoder(nn.Module):
    """Embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.d_model, env)
        self.blocks = nn.ModuleList(Block(config, env, index) for index in range(config.n_layers))
        self.norm_f = nn.LayerNorm(config.d_model, bias=False)
        self.rope = Rope.of(config, config.d_model // config.n_heads, env.context_length, whole=True)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x = self.wte(batch.input_ids)
        angles = self.rope(batch.positions, x.dtype)
        for block in self.blocks:
            x = block(x, angles, batch)
        result: Tensor = self.norm_f(x)
        return result


class Dbrx(TransformerLM):
    """DBRX."""

    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)

    def __init__(self, config: Any, env: BuildEnv) -> None:
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.wte)

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry; the numbers of heads are in two parts of the configuration."""
        heads = config.n_heads
        dim = config.d_model // heads
        return AttentionShape(heads=heads, kv_heads=config.attn_config.kv_n_heads, dim=dim, layers=config.n_layers)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``Model``; matrices of all experts are split."""
        super().load_weights(weight for name, tensor in weights for weight in self._taken_apart(name, tensor))

    def _taken_apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        if not name.endswith(STACKED):
            yield name, tensor
            return
        path, _, matrix = name.rpartition(".")
        for number, part in enumerate(tensor.chunk(self.config.ffn_config.moe_num_experts)):
            yield f"{path}.{number}.{matrix}.weight", part.T if matrix == "w2" else part
