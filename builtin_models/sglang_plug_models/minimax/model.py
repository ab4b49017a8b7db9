"""MiniMax-Text-01 (MiniMax, 2025): lightning attention in most layers, softmax attention in the others, and experts.

Lightning attention is linear attention with a decay per head. Norms are in the residual stream, and both terms of each
residual addition are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import Linear, RMSNorm, activation, recurrent
from sglang_plug_models.common.blocks import Angles, CausalLM, SelfAttention, head_dim
from sglang_plug_models.common.hybrid import Hybrid
from sglang_plug_models.moe.block import SparseMLP, router
from sglang_plug_models.moe.mixtral import NAMES

EPSILON = 1e-6
"""Epsilon of the norm on lightning attention's output, independent of ``rms_norm_eps``."""
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Tensors in checkpoints that follow from the configuration."""


class LightningAttention(nn.Module):
    """Linear attention, normalised and gated."""

    decay: Tensor

    def __init__(self, config: Any, env: BuildEnv, index: int, state: int) -> None:
        super().__init__()
        self.heads, self.dim, self.state = config.num_attention_heads, head_dim(config), state
        width = self.heads * self.dim
        self.qkv_proj = Linear(config.hidden_size, 3 * width, env)
        self.output_gate = Linear(config.hidden_size, width, env)
        self.norm = RMSNorm(width, EPSILON, env)
        self.out_proj = Linear(width, config.hidden_size, env)
        self._activate = activation(config.hidden_act)
        self._attend = env.kernels.linear_attention
        slower = 1 - index / (config.num_hidden_layers - 1 + 1e-5) + 1e-5
        rates = 2.0 ** (-8 / self.heads * torch.arange(1, self.heads + 1, dtype=torch.float64, device="cpu"))
        decay = (-slower * rates).to(torch.float32).to(torch.get_default_device())
        self.register_buffer("decay", decay, persistent=False)

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        states = recurrent(batch)
        q, k, v = self._activate(self.qkv_proj(x)).view(-1, self.heads, 3 * self.dim).chunk(3, dim=-1)
        decay = self.decay.expand(len(x), -1)
        result = self._attend(q, k, v, decay, states.pool.states[self.state], states.spans)
        return self.out_proj(torch.sigmoid(self.output_gate(x)) * self.norm(result.flatten(1)))


class Layer(nn.Module):
    """Attention and experts, added to normalised states."""

    def __init__(self, config: Any, env: BuildEnv, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.self_attn = mixer
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.mlp = mlp
        kind = "full_attn" if isinstance(mixer, SelfAttention) else "linear_attn"
        self.mixer_factors = tuple(float(getattr(config, f"{kind}_{factor}_factor")) for factor in ("alpha", "beta"))
        self.mlp_factors = float(config.mlp_alpha_factor), float(config.mlp_beta_factor)

    def forward(self, x: Tensor, residual: None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, None]:
        """Map ``[T, hidden]`` to ``[T, hidden]``; there is no pending residual addition."""
        (alpha, beta), normed = self.mixer_factors, self.input_layernorm(x)
        x = self.post_attention_layernorm(normed * alpha + self.self_attn(normed, angles, batch) * beta)
        alpha, beta = self.mlp_factors
        return x * alpha + self.mlp(x) * beta, None


class MiniMax(Hybrid):
    """MiniMax-Text-01."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {**CausalLM.packed, "block_sparse_moe": ("mlp", None)}
    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, *COMPUTED)

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of lightning attention."""
        dim = head_dim(config)
        return (StateShape(shape=(config.num_attention_heads, dim, dim), dtype=torch.float32),)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        mixer: nn.Module
        if self.has_attention(config, index):
            mixer = SelfAttention(config, env, self.kv_layer_index(config, index), window=config.sliding_window)
        else:
            mixer = LightningAttention(config, env, index, self.state_index(config, index))
        gate = router(config, env, index, experts=config.num_local_experts, normalise=True)
        return Layer(config, env, mixer, SparseMLP(config, env, gate, width=config.intermediate_size, names=NAMES))
