"""Mixture of experts: a router that chooses a few experts for each token, and the experts (Shazeer et al., 2017)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.kernels import LinearFunction, each_expert, moe
from sglang_plug.contracts.model.model import BuildEnv
from sglang_plug.contracts.model.quantization import Matrix, MatrixRole, Quantization
from sglang_plug.contracts.serving.executor import SINGLE_RANK, Collectives, shard_slice

from .activation import activation, gated_activation
from .linear import Linear, checked
from .unpacked import Unpacking

NAMES: Mapping[str, str] = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
"""The checkpoint's name of each of an expert's three matrices -> its part."""
ONE_EXPERT = re.compile(r"(\d+)\.(\w+)\.(\w+)")


class Router(Linear):
    """Chooses for each token the ``chosen`` most probable experts, by softmax.

    Args:
        hidden: width of the hidden states.
        experts: number of experts.
        chosen: number of experts for each token.
        env: the environment that the model is built in.
        layer: index of the decoder layer, for ``watcher``.
        normalise: divide the weights of a token's experts by their sum.
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
        """Return the experts ``[T, k]`` of ``x`` ``[T, hidden]``, best first, and their float32 weights."""
        experts, weights = self.select(self(x))
        if self.watcher is not None:
            self.watcher(self.layer, experts)
        return experts, weights

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for ``logits`` ``[T, experts]``; overridden by families with another rule."""
        probabilities = logits.softmax(-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.chosen, dim=-1)
        return experts, weights / weights.sum(-1, keepdim=True) if self.normalise else weights


class Stacked(nn.Module):
    """One matrix of every expert, or several stacked by rows: ``weight`` is ``[E, rows, columns]``.

    Args:
        experts: number of experts.
        parts: rows of each part, in order and of all ranks, e.g. ``{"gate": 1408, "up": 1408}``.
        columns: columns of every part, of all ranks.
        ranks: the ranks that share the dimension ``shared`` of every expert. Raises ``ConfigError`` if they cannot
            share it.
        shared: the dimension: rows of each part, or columns.
        one_by_one: experts are multiplied one after the other, and stay quantized if the checkpoint is.
    """

    weight: Tensor

    def __init__(
        self,
        experts: int,
        parts: Mapping[str, int],
        columns: int,
        ranks: Collectives = SINGLE_RANK,
        shared: Literal["rows", "columns"] = "rows",
        *,
        one_by_one: bool = False,
    ) -> None:
        super().__init__()
        self._whole, self._whole_columns = dict(parts), columns
        of_rows = ranks if shared == "rows" else SINGLE_RANK
        self._own = {name: shard_slice(size, of_rows, label="rows of experts") for name, size in parts.items()}
        self._columns = shard_slice(columns, SINGLE_RANK if shared == "rows" else ranks, label="columns of experts")
        sizes = {name: rows.stop - rows.start for name, rows in self._own.items()}
        width = self._columns.stop - self._columns.start
        self.weight = nn.Parameter(torch.empty(experts, sum(sizes.values()), width))
        self.shards = tuple(f"{expert}.{part}" for expert in range(experts) for part in parts)
        ends = list(accumulate(sizes.values()))
        self._rows = {name: slice(end - sizes[name], end) for name, end in zip(parts, ends, strict=True)}
        self._experts, self._one_by_one = experts, one_by_one
        self._unpacking: Unpacking | None = None
        self.products: dict[str, LinearFunction] = {}
        """Shard -> product of an expert that stays quantized; empty if there is a ``weight``."""

    def quantize_weights(self, name: str, checkpoint_names: Sequence[str], quantization: Quantization) -> bool:
        """Ask ``quantization`` for the schemes of the experts' matrices; return True if they are quantized.

        As they are loaded, quantized matrices are packed one by one, or converted back to numbers. Raises
        ``ConfigError`` if ordinary matrices are to be quantized, or stored ones cannot be converted back.
        """
        matrix = partial(Matrix, name=name, checkpoint_names=checkpoint_names, role="experts", dtype=self.weight.dtype)
        matrices = {part: matrix(size_in=self._whole_columns, size_out=rows) for part, rows in self._whole.items()}
        schemes = {
            part: scheme
            for part, requested in matrices.items()
            if (scheme := quantization.scheme(requested)) is not None
        }
        if not schemes:
            return False
        if len(schemes) < len(matrices) or not all(scheme.stored and scheme.dense for scheme in schemes.values()):
            raise ConfigError(f"{quantization.name!r} has a scheme for {name!r}, but experts cannot be quantized yet")
        self._unpacking = Unpacking(self, schemes)
        return True

    @property
    def unpacks(self) -> int:
        """Bytes of the ordinary weight that a quantized checkpoint is converted back to."""
        return 0 if self._unpacking is None or self._one_by_one else self._unpacking.weight.nbytes

    def make_room(self) -> None:
        """Do nothing: a weight without memory is never allocated."""

    def pack_weights(self) -> None:
        """Replace the stored tensors by the weight, or by nothing if experts stay quantized."""
        if self._unpacking is not None:
            self._unpacking.finish(keep=not self._one_by_one)
            self._unpacking = None

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of the tensor of all experts in checkpoints."""
        return (len(parameter), sum(self._whole.values()), self._whole_columns)

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy one expert's part, ``"3.gate"``; a shard of ``None`` means all parts of all experts in one tensor.

        Raises ``ValueError`` if the shapes differ or there is no such expert.
        """
        if self._unpacking is not None:
            if shard is None:
                raise ValueError("experts of a quantized checkpoint are expected one by one")
            matrix = self._unpacked(self._unpacking, parameter, tensor, shard)
            if matrix is None:
                return
            parameter, tensor = self._unpacking.weight, matrix
        if shard is None:
            parts = checked(tensor, self.whole_shape(parameter)).split_with_sizes(list(self._whole.values()), dim=1)
            for (name, rows), part in zip(self._own.items(), parts, strict=True):
                parameter[:, self._rows[name]].copy_(part[:, rows, self._columns])
            return
        expert, name = self._expert_and_part(shard)
        matrix = checked(tensor, (self._whole[name], self._whole_columns))
        parameter[expert, self._rows[name]].copy_(matrix[self._own[name], self._columns])

    def _unpacked(self, unpacking: Unpacking, parameter: Tensor, tensor: Tensor, shard: str) -> Tensor | None:
        """Return the matrix of a shard, if this was its last tensor and it does not stay quantized."""
        _, name = self._expert_and_part(shard)
        held, scheme = unpacking.add(name, shard, parameter, tensor), unpacking.schemes[name]
        if held is None or scheme.dense is None:
            return None
        if self._one_by_one:
            self.products[shard] = scheme.pack(held, None)
            return None
        return scheme.dense(held)

    def _expert_and_part(self, shard: str) -> tuple[int, str]:
        """Return expert and part of a shard. Raises ``ValueError`` if there is no such expert."""
        expert, _, name = shard.partition(".")
        if int(expert) >= self._experts:
            raise ValueError(f"there are {self._experts} experts, counted from 0")
        return int(expert), name


class Experts(nn.Module):
    """Gated MLPs, ``down(activation(gate(x)) * up(x))``, each applied to the tokens that are routed to it.

    Checkpoints may hold all experts in two tensors, ``gate_up_proj`` ``[E, 2 * width, hidden]`` and ``down_proj`` ``[E,
    hidden, width]``, or one by one, ``3.gate_proj.weight``.

    Args:
        hidden: width of the hidden states.
        width: width of one expert, which the ranks share.
        count: number of experts.
        env: the environment that the model is built in.
        names: the checkpoint's names of an expert's matrices -> ``gate``, ``up``, ``down``.
        activation_name: replaces ``silu``, by its name in checkpoints. Raises ``ConfigError`` if it is unknown.
        gated: experts have a gate; those without compute ``down(activation(up(x)))``, with all of them in ``up_proj``
            ``[E, width, hidden]``, or one by one.
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
        gated: bool = True,
    ) -> None:
        super().__init__()
        alone = env.kernels.moe is moe and env.ranks.size == 1
        self._parts = ("gate", "up") if gated else ("up",)
        self.gate_up_proj = Stacked(count, dict.fromkeys(self._parts, width), hidden, env.ranks, one_by_one=alone)
        self.down_proj = Stacked(count, {"down": hidden}, width, env.ranks, shared="columns", one_by_one=alone)
        self._count = count
        self._gated = gated_activation(activation_name, env) if gated else activation(activation_name)
        self._reduce = env.ranks.all_reduce if env.ranks.size > 1 else None
        self._names = names
        self._moe = env.kernels.moe
        self._biased_moe = None
        if not gated or activation(activation_name) is not F.silu:
            self._biased_moe = env.kernels.biased_moe

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Apply ``experts`` ``[T, k]`` with ``weights`` ``[T, k]`` to ``x`` ``[T, hidden]``; return ``[T, hidden]``."""
        if self.gate_up_proj.products:
            return each_expert(x, self._count, self._expert, experts, weights)
        gate_up, down = self.gate_up_proj.weight, self.down_proj.weight
        if self._biased_moe is None:
            output = self._moe(x, gate_up, down, experts, weights)
        else:
            output = self._biased_moe(x, gate_up, down, None, None, experts, weights, self._gated)
        return output if self._reduce is None else self._reduce(output)

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        """Return the output of one quantized expert for ``rows``."""
        wide = torch.cat([self.gate_up_proj.products[f"{number}.{part}"](rows) for part in self._parts], dim=-1)
        return self.down_proj.products[f"{number}.down"](self._gated(wide))

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return parameter and shard for a checkpoint's name below this module; an unknown name stays as it is."""
        if rest in ("gate_up_proj", "down_proj"):
            return f"{rest}.weight", None
        if rest == "up_proj" and len(self._parts) == 1:
            return "gate_up_proj.weight", None
        match = ONE_EXPERT.fullmatch(rest)
        part = self._names.get(match[2]) if match else None
        if match is None or part is None:
            return rest, None
        return f"{'down' if part == 'down' else 'gate_up'}_proj.{match[3]}", f"{int(match[1])}.{part}"
