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
from sglang_plug.executor import ALONE, Collectives, own_slice
from sglang_plug.kernels import LinearFunction, each_expert, moe
from sglang_plug.model import BuildEnv
from sglang_plug.quantization import Matrix, MatrixRole, Quantization

from .activation import activation, gated_activation
from .linear import Linear, checked
from .unpacked import Unpacking

NAMES: Mapping[str, str] = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
"""What checkpoints call an expert's three matrices -> what they are."""
ONE_EXPERT = re.compile(r"(\d+)\.(\w+)\.(\w+)")


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
        parts: rows of each part, in order and of all ranks, e.g. ``{"gate": 1408, "up": 1408}``.
        columns: columns of every part, of all ranks.
        ranks: who shares every expert's ``shared``: each rank has some of the rows of each part, or of the columns.
            Raises ``ConfigError`` if they cannot be shared.
        one_by_one: experts are multiplied by one after the other: those that a checkpoint quantized stay so.
    """

    weight: Tensor

    def __init__(
        self,
        experts: int,
        parts: Mapping[str, int],
        columns: int,
        ranks: Collectives = ALONE,
        shared: Literal["rows", "columns"] = "rows",
        *,
        one_by_one: bool = False,
    ) -> None:
        super().__init__()
        self._whole, self._whole_columns = dict(parts), columns
        of_rows = ranks if shared == "rows" else ALONE
        self._own = {name: own_slice(size, of_rows, what="rows of experts") for name, size in parts.items()}
        self._columns = own_slice(columns, ALONE if shared == "rows" else ranks, what="columns of experts")
        sizes = {name: rows.stop - rows.start for name, rows in self._own.items()}
        width = self._columns.stop - self._columns.start
        self.weight = nn.Parameter(torch.empty(experts, sum(sizes.values()), width))
        self.shards = tuple(f"{expert}.{part}" for expert in range(experts) for part in parts)
        ends = list(accumulate(sizes.values()))
        self._rows = {name: slice(end - sizes[name], end) for name, end in zip(parts, ends, strict=True)}
        self._experts, self._one_by_one = experts, one_by_one
        self._unpacking: Unpacking | None = None
        self.products: dict[str, LinearFunction] = {}
        """By shard, of experts that stay quantized; empty if there is a ``weight``."""

    def quantize_weights(self, name: str, checkpoint_names: Sequence[str], quantization: Quantization) -> bool:
        """Ask ``quantization`` what the checkpoint holds of an expert's matrices. They are packed one by one, or turned
        back into numbers, as they are loaded; true if they are quantized.

        Raises ``ConfigError`` if ordinary ones are to be converted, or it cannot be told what stored ones stand for.
        """
        whole = partial(Matrix, name=name, checkpoint_names=checkpoint_names, role="experts", dtype=self.weight.dtype)
        asked = {part: whole(size_in=self._whole_columns, size_out=rows) for part, rows in self._whole.items()}
        schemes = {part: found for part, one in asked.items() if (found := quantization.scheme(one)) is not None}
        if not schemes:
            return False
        if len(schemes) < len(asked) or not all(one.stored and one.dense for one in schemes.values()):
            raise ConfigError(f"{quantization.name!r} has a scheme for {name!r}, but experts cannot be quantized yet")
        self._unpacking = Unpacking(self, schemes)
        return True

    @property
    def unpacks(self) -> int:
        """Bytes of the ordinary weight that a quantized checkpoint's is turned back into."""
        return 0 if self._unpacking is None or self._one_by_one else self._unpacking.weight.nbytes

    def make_room(self) -> None:
        """Nothing: what has no memory yet will never have any."""

    def pack_weights(self) -> None:
        """The weight, or nothing, instead of what it was stored as."""
        if self._unpacking is not None:
            self._unpacking.finish(keep=not self._one_by_one)
            self._unpacking = None

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """What the checkpoint holds of all experts in one tensor."""
        return (len(parameter), sum(self._whole.values()), self._whole_columns)

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy one expert's part, ``"3.gate"``; ``None`` stands for all of all experts in one tensor.

        Raises ``ValueError`` if the shapes differ or there is no such expert.
        """
        if self._unpacking is not None:
            if shard is None:
                raise ValueError("experts of a quantized checkpoint are expected one by one")
            found = self._unpacked(self._unpacking, parameter, tensor, shard)
            if found is None:
                return
            parameter, tensor = self._unpacking.weight, found
        if shard is None:
            parts = checked(tensor, self.whole_shape(parameter)).split_with_sizes(list(self._whole.values()), dim=1)
            for (name, rows), part in zip(self._own.items(), parts, strict=True):
                parameter[:, self._rows[name]].copy_(part[:, rows, self._columns])
            return
        expert, name = self._counted(shard)
        found = checked(tensor, (self._whole[name], self._whole_columns))
        parameter[expert, self._rows[name]].copy_(found[self._own[name], self._columns])

    def _unpacked(self, unpacking: Unpacking, parameter: Tensor, tensor: Tensor, shard: str) -> Tensor | None:
        """The matrix of a shard, if this was its last tensor and it is not packed."""
        _, name = self._counted(shard)
        held, scheme = unpacking.add(name, shard, parameter, tensor), unpacking.schemes[name]
        if held is None or scheme.dense is None:
            return None
        if self._one_by_one:
            self.products[shard] = scheme.pack(held, None)
            return None
        return scheme.dense(held)

    def _counted(self, shard: str) -> tuple[int, str]:
        """Expert and part. Raises ``ValueError`` if there is no such expert."""
        expert, _, name = shard.partition(".")
        if int(expert) >= self._experts:
            raise ValueError(f"there are {self._experts} experts, counted from 0")
        return int(expert), name


class Experts(nn.Module):
    """Gated MLPs, ``down(activation(gate(x)) * up(x))``, of which each token passes through a few.

    Checkpoints may hold all experts in two tensors, ``gate_up_proj`` ``[E, 2 * width, hidden]`` and ``down_proj``
    ``[E, hidden, width]``, or name them one by one, ``3.gate_proj.weight``.

    Args:
        hidden: width of the hidden states.
        width: width of one expert, which the ranks share.
        count: how many experts there are.
        env: the surroundings the model is built in.
        names: what the checkpoint calls an expert's matrices -> ``gate``, ``up``, ``down``.
        activation_name: in place of ``silu``, as checkpoints call it. Raises ``ConfigError`` if it is unknown.
        gated: experts have a gate; those without are ``down(activation(up(x)))``, all of them in ``up_proj``
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
        """``x`` ``[T, hidden]``, sent to ``experts`` ``[T, k]`` with ``weights`` ``[T, k]``, to ``[T, hidden]``."""
        if self.gate_up_proj.products:
            return each_expert(x, self._count, self._expert, experts, weights)
        gate_up, down = self.gate_up_proj.weight, self.down_proj.weight
        if self._biased_moe is None:
            found = self._moe(x, gate_up, down, experts, weights)
        else:
            found = self._biased_moe(x, gate_up, down, None, None, experts, weights, self._gated)
        return found if self._reduce is None else self._reduce(found)

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        """What one expert makes of ``rows``, by its products."""
        wide = torch.cat([self.gate_up_proj.products[f"{number}.{part}"](rows) for part in self._parts], dim=-1)
        return self.down_proj.products[f"{number}.down"](self._gated(wide))

    def place(self, rest: str) -> tuple[str, str | None]:
        """Our parameter and shard for a checkpoint's name below this module; an unknown name stays as it is."""
        if rest in ("gate_up_proj", "down_proj"):
            return f"{rest}.weight", None
        if rest == "up_proj" and len(self._parts) == 1:
            return "gate_up_proj.weight", None
        found = ONE_EXPERT.fullmatch(rest)
        part = self._names.get(found[2]) if found else None
        if found is None or part is None:
            return rest, None
        return f"{'down' if part == 'down' else 'gate_up'}_proj.{found[3]}", f"{int(found[1])}.{part}"
