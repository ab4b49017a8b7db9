"""Experts with biases and a clipped gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, shard_slice
from sglang_plug.layers import Router
from sglang_plug.layers.linear import checked
from sglang_plug.layers.moe import Stacked


class StackedBias(nn.Module):
    """Biases of all experts: ``weight`` is ``[E, rows]``; ranks split the rows of each part.

    Args:
        experts: how many there are.
        parts: rows of each part, in order and of all ranks.
        env: the environment in which the model is built.
        shared: whether ranks share the rows; otherwise the first adds them alone.
    """

    weight: Tensor

    def __init__(self, experts: int, parts: Mapping[str, int], env: BuildEnv, *, shared: bool) -> None:
        super().__init__()
        self._whole, ranks = dict(parts), env.ranks
        whole = {name: slice(0, size) for name, size in parts.items()}
        own = {name: shard_slice(size, ranks, label="rows of experts") for name, size in parts.items()}
        self._own, self._silent = own if shared else whole, not shared and ranks.rank > 0
        size = sum(rows.stop - rows.start for rows in self._own.values())
        self.weight = nn.Parameter(torch.empty(experts, size))

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape in the checkpoint."""
        return (len(parameter), sum(self._whole.values()))

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy this rank's part of all biases. Raises ``ValueError`` if the shapes differ."""
        if shard is not None:
            raise ValueError(f"it has no part {shard!r}")
        parts = checked(tensor, self.whole_shape(parameter)).split_with_sizes(list(self._whole.values()), dim=1)
        parameter.copy_(torch.cat([part[:, rows] for part, rows in zip(parts, self._own.values(), strict=True)], dim=1))
        if self._silent:
            parameter.zero_()


class BiasedExperts(nn.Module):
    """Experts ``down(gated(gate(x), up(x)))`` with biases; each token passes through a few.

    Args:
        config: the checkpoint's configuration.
        env: the environment in which the model is built.
    """

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        hidden, width, count = config.hidden_size, config.intermediate_size, config.num_local_experts
        wide = {"gate": width, "up": width}
        self.gate_up_proj = Stacked(count, wide, hidden, env.ranks)
        self.gate_up_proj_bias = StackedBias(count, wide, env, shared=True)
        self.down_proj = Stacked(count, {"down": hidden}, width, env.ranks, shared="columns")
        self.down_proj_bias = StackedBias(count, {"down": hidden}, env, shared=False)
        self.alpha, self.limit = float(config.swiglu_alpha), float(config.swiglu_limit)
        self._moe = env.kernels.biased_moe
        self._reduce = env.ranks.all_reduce if env.ranks.size > 1 else None

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Send ``x`` ``[T, hidden]`` through ``experts`` ``[T, k]`` with ``weights`` ``[T, k]``."""
        matrices = self.gate_up_proj.weight, self.down_proj.weight
        biases = self.gate_up_proj_bias.weight, self.down_proj_bias.weight
        result = self._moe(x, *matrices, *biases, experts, weights, self.gated)
        return result if self._reduce is None else self._reduce(result)

    def gated(self, gate_up: Tensor) -> Tensor:
        """Map ``[N, 2 * width]``, gates first, to ``[N, width]``."""
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return our parameter and shard for a checkpoint's name below this module."""
        number, _, matrix = rest.partition(".")
        if number.isdecimal():
            part, _, kind = matrix.partition(".")
            return f"{'down' if part == 'down' else 'gate_up'}_proj.{kind}", f"{number}.{part}"
        return f"{rest}.weight", None


class ChosenRouter(Router):
    """Router with a bias; weights are a softmax over the chosen experts only."""

    def __init__(self, config: Any, env: BuildEnv, layer: int) -> None:
        experts, chosen = config.num_local_experts, config.num_experts_per_tok
        super().__init__(config.hidden_size, experts, chosen, env, layer=layer)
        self.bias = nn.Parameter(torch.empty(experts))

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best experts of ``logits`` ``[T, experts]`` and their weights."""
        scores, experts = logits.topk(self.chosen, dim=-1)
        return experts, scores.float().softmax(-1)
