"""JetMoE (Shen et al., 2024): experts in MLPs and in attention, whose experts project queries for shared keys.

The attention experts are few and small. All of them are computed as one matrix, and the ones not chosen are dropped, so
that no step needs to synchronise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import Attention, AttentionShape, BuildEnv, ForwardBatch
from sglang_plug.layers import Experts, Linear, RMSNorm, Router
from sglang_plug_models.common.blocks import Angles, CausalLM
from sglang_plug_models.moe.block import router

EPSILON = 1e-6
"""Epsilon of layers' norms, independent of ``rms_norm_eps``."""
OUT_OF_ATTENTION = "experts.output_linear.weight"


class AttentionExperts(nn.Module):
    """Attention experts: the query and output projections of a token."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width, self.count, self.chosen = config.hidden_size, config.num_local_experts, config.num_experts_per_tok
        self.size = config.kv_channels * config.num_key_value_heads
        self.router = nn.ModuleDict({"layer": Linear(width, self.count, env)})
        self.input_linear = Linear(width, self.count * self.size, env)
        self.output_linear = Linear(self.count * self.size, width, env)
        self.bias = nn.Parameter(torch.empty(width))

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries ``[T, k, size]`` of ``[T, hidden]``, and their experts ``[T, k]`` with weights."""
        scores, experts = self.router["layer"](x).float().topk(self.chosen, dim=-1)
        every = self.input_linear(x).view(-1, self.count, self.size)
        return every.gather(1, self._wide(experts)), experts, scores.softmax(-1).to(x.dtype)

    def together(self, attended: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Combine attention outputs ``[T, k, size]`` to ``[T, hidden]``."""
        every = attended.new_zeros(len(attended), self.count, self.size)
        every.scatter_(1, self._wide(experts), attended * weights[..., None])
        return self.output_linear(every.flatten(1)) + self.bias

    def _wide(self, experts: Tensor) -> Tensor:
        return experts[..., None].expand(-1, -1, self.size)


class SelfAttention(nn.Module):
    """Attention with queries of several experts for the same keys."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.dim, self.kv_heads = config.kv_channels, config.num_key_value_heads
        self.experts = AttentionExperts(config, env)
        self.kv_proj = Linear(config.hidden_size, 2 * self.dim * self.kv_heads, env)
        self.attention = Attention(env, index, scale=self.dim**-0.5)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        q, experts, weights = self.experts.queries(x)
        q = q.view(len(x), -1, self.kv_heads, self.dim).transpose(1, 2).flatten(1, 2)  # queries of a key are contiguous
        k, v = self.kv_proj(x).view(len(x), 2, self.kv_heads, self.dim).unbind(1)
        result = self.attention.rotary(q, k, v, *angles, batch).view(len(x), self.kv_heads, -1, self.dim)
        return self.experts.together(result.transpose(1, 2).flatten(2), experts, weights)


class SparseMLP(nn.Module):
    """A router, its experts, and an output bias."""

    def __init__(self, config: Any, env: BuildEnv, router: Router) -> None:
        super().__init__()
        self.router = nn.ModuleDict({"layer": router})
        self.experts = Experts(
            config.hidden_size,
            config.intermediate_size,
            router.experts,
            env,
            activation_name=config.activation_function,
        )
        self.bias = nn.Parameter(torch.empty(config.hidden_size))
        self._choose = router.choose

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        result: Tensor = self.experts(x, *self._choose(x)) + self.bias
        return result

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return our parameter for a checkpoint's name, which differs for the experts' matrices."""
        names = {
            "input_linear.weight": "experts.gate_up_proj.weight",
            "output_linear.weight": "experts.down_proj.weight",
        }
        return names.get(rest, rest), None


class Layer(nn.Module):
    """Attention and MLP, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, EPSILON, env)
        self.self_attention = attention
        self.post_attention_layernorm = RMSNorm(config.hidden_size, EPSILON, env)
        self.mlp = mlp

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, stream = self.input_layernorm.add(x, residual)
        normed, stream = self.post_attention_layernorm.add(self.self_attention(normed, angles, batch), stream)
        return self.mlp(normed), stream


class JetMoe(CausalLM):
    """JetMoE."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {}

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry with as many queries for each key as a token has experts."""
        heads = config.num_key_value_heads
        return AttentionShape(
            heads=heads * config.num_experts_per_tok,
            kv_heads=heads,
            dim=config.kv_channels,
            layers=config.num_hidden_layers,
        )

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        gate = router(config, env, index, experts=config.num_local_experts)
        return Layer(config, env, SelfAttention(config, env, index), SparseMLP(config, env, gate))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``CausalLM``; attention's experts become one matrix."""
        CausalLM.load_weights(self, ((name, self._joined(name, weight)) for name, weight in weights))

    def _joined(self, name: str, tensor: Tensor) -> Tensor:
        if ".self_attention.experts." not in name or tensor.dim() != 3:
            return tensor
        return tensor.transpose(0, 1).flatten(1) if name.endswith(OUT_OF_ATTENTION) else tensor.flatten(0, 1)
