"""Qwen1.5-MoE, Qwen2-MoE (Yang et al., 2024) and Qwen3-MoE (Yang et al., 2025)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv
from sglang_plug.layers import Linear
from sglang_plug_models.common.blocks import CausalLM, GatedMLP, SelfAttention, window_of

from .block import SparseMLP, router


def is_sparse(config: Any, index: int) -> bool:
    """Return whether layer ``index`` has experts; the others have one MLP."""
    if index in (getattr(config, "mlp_only_layers", None) or ()):
        return False
    return config.num_experts > 0 and (index + 1) % getattr(config, "decoder_sparse_step", 1) == 0


class QwenSparseMLP(SparseMLP):
    """Routed experts of both generations."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        gate = router(config, env, index, experts=config.num_experts, normalise=getattr(config, "norm_topk_prob", True))
        super().__init__(config, env, gate, width=config.moe_intermediate_size)


class SharedExpertMLP(QwenSparseMLP):
    """Routed experts, and a shared expert with a sigmoid gate."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__(config, env, index)
        self.shared_expert = GatedMLP(config, env, width=config.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(config.hidden_size, 1, env)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        shared = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return super().forward(x) + shared


class Qwen2Moe(CausalLM):
    """Qwen1.5-MoE and Qwen2-MoE: biases on queries, keys and values, and a shared expert."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with a window only in the layers that ``layer_types`` names."""
        bias = getattr(config, "qkv_bias", True)
        return SelfAttention(config, env, index, qkv_bias=bias, window=window_of(config, index))

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts and a shared one, or an ordinary MLP."""
        return SharedExpertMLP(config, env, index) if is_sparse(config, index) else GatedMLP(config, env)


class Qwen3Moe(CausalLM):
    """Qwen3-MoE: normalised queries and keys, and no shared expert."""

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with RMSNorm on each head's queries and keys."""
        bias = getattr(config, "attention_bias", False)
        return SelfAttention(
            config, env, index, qkv_bias=bias, out_bias=bias, qk_norm=True, window=window_of(config, index)
        )

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts or an ordinary MLP."""
        return QwenSparseMLP(config, env, index) if is_sparse(config, index) else GatedMLP(config, env)
