"""Mixture of experts: a router that chooses a few experts for each token, and the experts (Shazeer et al., 2017)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.config import ConfigError
from sglang_plug.kernels import moe
from sglang_plug.model import BuildEnv
from sglang_plug.quantization import Matrix, MatrixRole, Quantization

from .activation import activation, gated_activation
from .linear import Linear

NAMES: Mapping[str, str] = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
"""What checkpoints call an expert's three matrices -> what they are."""
ONE_EXPERT = re.compile(r"(\d+)\.(\w+)\.weight")


class Router(Linear):
    """Softmax over the experts, of which each token gets the ``chosen`` most probable.

    Args:
        hidden: width of the hidden states.
        experts: how many there are.
        chosen: how many each token gets.
        env: the surroundings the model is built in.
        layer: index of the decoder layer, for those who watch what is chosen.
        normalise: let the weights of a token's experts add up to one.
    """

    role: ClassVar[MatrixRole] = "router"
    watcher: Callable[[int, Tensor], None] | None = None
    """While set, called with the layer and the chosen experts ``[T, k]``."""

    def __init__(
        self, hidden: int, experts: int, chosen: int, env: BuildEnv, *, layer: int, normalise: bool = True
    ) -> None:
        super().__init__(hidden, experts, env)
        self.experts, self.chosen, self.layer, self.normalise = experts, chosen, layer, normalise

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For ``x`` ``[T, hidden]``, the experts ``[T, k]`` of each token, best first, and their float32 weights."""
        experts, weights = self.select(self(x))
        if self.watcher is not None:
            self.watcher(self.layer, experts)
        return experts, weights

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """For ``logits`` ``[T, experts]``, the same; for families that choose in another way to replace."""
        probabilities = logits.softmax(-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.chosen, dim=-1)
        return experts, weights / weights.sum(-1, keepdim=True) if self.normalise else weights


class Stacked(nn.Module):
    """One matrix, or several below each other, of every expert: ``weight`` is ``[E, rows, columns]``.

    Args:
        experts: how many there are.
        parts: rows of each part, in order, e.g. ``{"gate": 1408, "up": 1408}``.
        columns: columns of every part.
    """

    def __init__(self, experts: int, parts: Mapping[str, int], columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, sum(parts.values()), columns))
        self.shards = tuple(f"{expert}.{part}" for expert in range(experts) for part in parts)
        ends = [sum(list(parts.values())[: index + 1]) for index in range(len(parts))]
        self._rows = {name: slice(end - parts[name], end) for name, end in zip(parts, ends, strict=True)}

    def quantize_weights(self, name: str, checkpoint_names: Sequence[str], quantization: Quantization) -> bool:
        """Tell ``quantization`` of the experts, which it must leave as they are: false.

        Raises ``ConfigError`` if it does not.
        """
        _, rows, columns = self.weight.shape
        matrix = Matrix(
            name=name,
            checkpoint_names=checkpoint_names,
            role="experts",
            size_in=columns,
            size_out=rows,
            dtype=self.weight.dtype,
        )
        if quantization.scheme(matrix) is not None:
            raise ConfigError(f"{quantization.name!r} has a scheme for {name!r}, but experts cannot be quantized yet")
        return False

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy one expert's part, ``"3.gate"``; ``None`` stands for all of all experts in one tensor.

        Raises ``ValueError`` if the shapes differ or there is no such expert.
        """
        target = parameter if shard is None else self._part(parameter, shard)
        if target.shape != tensor.shape:
            raise ValueError(f"expected shape {tuple(target.shape)}, found {tuple(tensor.shape)}")
        target.copy_(tensor)

    def _part(self, parameter: Tensor, shard: str) -> Tensor:
        expert, _, part = shard.partition(".")
        if int(expert) >= len(parameter):
            raise ValueError(f"there are {len(parameter)} experts, counted from 0")
        return parameter[int(expert), self._rows[part]]


class Experts(nn.Module):
    """Gated MLPs, ``down(activation(gate(x)) * up(x))``, of which each token passes through a few.

    Checkpoints may hold all experts in two tensors, ``gate_up_proj`` ``[E, 2 * width, hidden]`` and ``down_proj``
    ``[E, hidden, width]``, or name them one by one, ``3.gate_proj.weight``.

    Args:
        hidden: width of the hidden states.
        width: width of one expert.
        count: how many experts there are.
        env: the surroundings the model is built in.
        names: what the checkpoint calls an expert's matrices -> ``gate``, ``up``, ``down``.
        activation_name: in place of ``silu``, as checkpoints call it; any other is computed by the torch reference.
            Raises ``ConfigError`` if it is unknown.
    """

    def __init__(
        self,
        hidden: int,
        width: int,
        count: int,
        env: BuildEnv,
        *,
        names: Mapping[str, str] = NAMES,
        activation_name: str = "silu",
    ) -> None:
        super().__init__()
        self.gate_up_proj = Stacked(count, {"gate": width, "up": width}, hidden)
        self.down_proj = Stacked(count, {"down": hidden}, width)
        self._names = names
        self._moe = env.kernels.moe
        if activation(activation_name) is not F.silu:
            self._moe = partial(moe, gated=gated_activation(activation_name, env))

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """``x`` ``[T, hidden]``, sent to ``experts`` ``[T, k]`` with ``weights`` ``[T, k]``, to ``[T, hidden]``."""
        return self._moe(x, self.gate_up_proj.weight, self.down_proj.weight, experts, weights)

    def place(self, rest: str) -> tuple[str, str | None]:
        """Our parameter and shard for a checkpoint's name below this module; an unknown name stays as it is."""
        if rest in ("gate_up_proj", "down_proj"):
            return f"{rest}.weight", None
        found = ONE_EXPERT.fullmatch(rest)
        part = self._names.get(found[2]) if found else None
        if found is None or part is None:
            return rest, None
        return ("down_proj.weight" if part == "down" else "gate_up_proj.weight"), f"{int(found[1])}.{part}"
