"""DeepSeek-V2 (DeepSeek-AI, 2024) and DeepSeek-V3 (DeepSeek-AI, 2024).

Latent attention, and after a few dense layers routed experts next to shared ones that every token passes through.
Experts are grouped; a token's experts are chosen from its best groups only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import AttentionShape, BuildEnv, ConfigError
from sglang_plug.layers import Router
from sglang_plug_models.common.blocks import CausalLM, GatedMLP
from sglang_plug_models.moe.block import SparseMLP

from .latent_attention import LatentAttention, latent_shape


class GroupedRouter(Router):
    """Router that chooses experts from a token's best groups, with scores and weights in float32.

    Args:
        config: the checkpoint's configuration.
        env: the environment in which the model is built.
        layer: index of the decoder layer.
        groups: into how many groups the experts are divided.
        kept: from how many of them a token's experts come.
        normalise: let the weights of a token's experts add up to one, before ``routed_scaling_factor``.
    """

    def __init__(self, config: Any, env: BuildEnv, layer: int, *, groups: int, kept: int, normalise: bool) -> None:
        experts = getattr(config, "n_routed_experts", None) or config.num_experts
        chosen = config.num_experts_per_tok
        if experts % groups or not 1 <= kept <= groups or chosen > kept * (experts // groups):
            raise ConfigError(f"cannot choose {chosen} of {experts} experts from {kept} of {groups} groups")
        super().__init__(config.hidden_size, experts, chosen, env, layer=layer, normalise=normalise)
        self.groups, self.kept, self.factor = groups, kept, config.routed_scaling_factor

    def pack_weights(self) -> None:
        """Multiply in float32 from now on: rounded to bfloat16, many experts would tie."""
        if self.weight is None or self._scheme is not None:
            return super().pack_weights()
        weight = self.weight.detach().float()
        self._multiply = lambda x: F.linear(x.float(), weight)
        self.weight = None

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts of the groups with the best expert; weights are probabilities."""
        scores = logits.softmax(-1)
        return self.best_of(scores, scores, best=1)

    def best_of(self, scores: Tensor, ranking: Tensor, best: int) -> tuple[Tensor, Tensor]:
        """Return the experts ``[T, k]`` with the highest ``ranking`` ``[T, experts]``, and their weights in ``scores``.

        A group's score is the sum of its ``best`` best experts.
        """
        if self.kept < self.groups:
            grouped = ranking.view(-1, self.groups, self.experts // self.groups)
            worth = grouped.topk(best, dim=-1).values.sum(-1)
            dropped = torch.ones_like(worth, dtype=torch.bool).scatter_(1, worth.topk(self.kept, dim=-1).indices, False)
            ranking = grouped.masked_fill(dropped[..., None], float("-inf")).flatten(1)
        experts = ranking.topk(self.chosen, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return experts, weights * self.factor


class BalancedRouter(GroupedRouter):
    """Router that scores experts independently; a learned balancing bias affects the choice but not the weights."""

    def __init__(self, config: Any, env: BuildEnv, layer: int) -> None:
        groups, kept = config.n_group or 1, config.topk_group or 1
        super().__init__(config, env, layer, groups=groups, kept=kept, normalise=config.norm_topk_prob)
        self.e_score_correction_bias = nn.Parameter(torch.empty(self.experts, dtype=torch.float32))

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts of the groups with the best pair; weights are sigmoids."""
        scores = logits.sigmoid()
        return self.best_of(scores, scores + self.e_score_correction_bias, best=2)


class SharedExpertsMLP(SparseMLP):
    """Routed experts and shared ones, which form one wide MLP."""

    def __init__(self, config: Any, env: BuildEnv, router: GroupedRouter) -> None:
        width = config.moe_intermediate_size
        super().__init__(config, env, router, width=width)
        bias = getattr(config, "mlp_bias", False)
        self.shared_experts = GatedMLP(config, env, width=width * config.n_shared_experts, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return super().forward(x) + self.shared_experts(x)


class DeepseekV2(CausalLM):
    """DeepSeek-V2, and V2-Lite, which has no query latent and no expert groups."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        name: ours for name, ours in CausalLM.packed.items() if ours[0] == "gate_up_proj"
    }

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry of one key head, which caches a latent."""
        return latent_shape(config)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention on latents."""
        return LatentAttention(config, env, index)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build an MLP in the first layers and experts in the others."""
        if index < config.first_k_dense_replace:
            return GatedMLP(config, env, bias=getattr(config, "mlp_bias", False))
        return SharedExpertsMLP(config, env, self.router(config, env, index))

    def router(self, config: Any, env: BuildEnv, index: int) -> GroupedRouter:
        """Build the router that ``topk_method`` names."""
        if config.norm_topk_prob:
            raise ConfigError("norm_topk_prob is not supported for DeepSeek-V2: implementations disagree about it")
        match config.topk_method:
            case "greedy":
                groups = kept = 1
            case "group_limited_greedy":
                groups, kept = config.n_group, config.topk_group
            case method:
                raise ConfigError(f"topk_method {method!r} is not supported; known: greedy, group_limited_greedy")
        return GroupedRouter(config, env, index, groups=groups, kept=kept, normalise=False)


class DeepseekV3(DeepseekV2):
    """DeepSeek-V3 and DeepSeek-R1, without the multi-token prediction layers."""

    def router(self, config: Any, env: BuildEnv, index: int) -> GroupedRouter:
        """Build a sigmoid router with a balancing bias."""
        return BalancedRouter(config, env, index)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``CausalLM``; layers beyond the last are for multi-token prediction and are skipped."""
        super().load_weights(without_further_layers(weights, self.config))


def without_further_layers(weights: Iterable[tuple[str, Tensor]], config: Any) -> Iterator[tuple[str, Tensor]]:
    """Drop the multi-token prediction layers after the last layer."""
    last, more = config.num_hidden_layers, getattr(config, "num_nextn_predict_layers", None) or 0
    beyond = tuple(f"model.layers.{index}." for index in range(last, last + more))
    return (weight for weight in weights if not weight[0].startswith(beyond))
