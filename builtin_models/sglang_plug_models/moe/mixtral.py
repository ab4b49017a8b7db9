"""Mixtral (Jiang et al., 2024): Mistral with two of eight experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from sglang_plug import BuildEnv
from sglang_plug_models.common.blocks import CausalLM, SelfAttention, window_of

from .block import SparseMLP, router

NAMES = {"w1": "gate", "w3": "up", "w2": "down"}


class Mixtral(CausalLM):
    """Mixtral 8x7B and 8x22B."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {**CausalLM.packed, "block_sparse_moe": ("mlp", None)}

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with a window in every layer, if the checkpoint has one."""
        return SelfAttention(config, env, index, window=window_of(config, index))

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts in every layer."""
        gate = router(config, env, index, experts=config.num_local_experts, normalise=True)
        return SparseMLP(config, env, gate, width=config.intermediate_size, names=NAMES)
