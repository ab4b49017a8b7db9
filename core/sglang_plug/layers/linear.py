"""Layers that multiply by a matrix, or by several matrices with the same input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.adapters import RankShard
from sglang_plug.contracts.model.kernels import LinearFunction
from sglang_plug.contracts.model.model import BuildEnv
from sglang_plug.contracts.model.quantization import LinearScheme, Matrix, MatrixRole, Quantization, StoredTensor
from sglang_plug.contracts.serving.executor import shard_slice


class Linear(nn.Module):
    """The product ``x @ weight.T + bias``, ``[T, in]`` to ``[T, out]``.

    After ``pack_weights`` the kernel set, or the quantization, holds the weight in its own layout and the parameter is
    dropped. If the environment has a quantization, the weight has no memory until ``quantize_weights``, or until
    ``make_room`` if it will be converted.
    """

    role: ClassVar[MatrixRole] = "linear"
    unquantized: bool = False
    """True if checkpoints hold an ordinary weight whatever their format."""
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, size_in: int, size_out: int, env: BuildEnv, *, bias: bool = False) -> None:
        super().__init__()
        self.size_in, self.size_out = size_in, size_out
        self._device = torch.get_default_device()
        self.weight = nn.Parameter(
            torch.empty(size_out, size_in, device=self._device if env.quantization is None else "meta")
        )
        self.bias = nn.Parameter(torch.empty(size_out)) if bias else None
        self._pack = env.kernels.pack_linear
        self._ranks = env.ranks
        self._scheme: LinearScheme | None = None
        self._multiply: LinearFunction = self._plain

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[T, out]`` of ``[T, in]``."""
        return self._multiply(x)

    def quantize_weights(self, name: str, checkpoint_names: Sequence[str], quantization: Quantization) -> bool:
        """Ask ``quantization`` for a scheme, and allocate the tensors that are loaded unchanged; return True if there
        is a scheme.

        Raises ``ConfigError`` if the scheme expects stored tensors of a layer that has none.
        """
        assert self.weight is not None
        self._scheme = quantization.scheme(
            Matrix(
                name=name,
                checkpoint_names=checkpoint_names,
                role=self.role,
                size_in=self.size_in,
                size_out=self.size_out,
                part_sizes=self._part_sizes if len(checkpoint_names) == len(self._part_sizes) else (),
                dtype=self.weight.dtype,
                unquantized=self.unquantized,
            )
        )
        if self._scheme is not None and self._scheme.stored:
            if self.unquantized:
                raise ConfigError(f"{quantization.name!r} expects stored tensors of {name!r}, which has none")
            self.weight = None
            for part, stored in self._scheme.stored.items():
                if stored.parts and len(stored.parts) != len(self._part_sizes):
                    raise ConfigError(
                        f"{quantization.name!r} has {len(stored.parts)} tensors for {name!r}, which has "
                        f"{len(self._part_sizes)} parts"
                    )
                room = torch.empty(stored.shape, dtype=stored.dtype, device=self._device)
                setattr(self, part, nn.Parameter(room, requires_grad=False))
        elif self._scheme is None:
            self.make_room()
        return self._scheme is not None

    @property
    def converts(self) -> bool:
        """True if the loaded weight is only needed for packing: packing it early saves memory."""
        return self._scheme is not None and not self._scheme.stored and not self.unquantized

    def make_room(self) -> None:
        """Allocate memory for the weight, unless it has some."""
        if self.weight is not None and self.weight.is_meta:
            self.weight = nn.Parameter(torch.empty_like(self.weight, device=self._device))

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the checkpoint's tensor, or that of one part; a shard of ``None`` means all parts in one tensor.

        If several ranks share the matrix, only this rank's part is copied. Raises ``ValueError`` if the shapes differ.
        """
        stored = self._stored_as(parameter)
        if stored is not None and stored.parts:
            self._load_part(stored, parameter, tensor, shard)
            return
        if self._ranks.size > 1:
            tensor = self._own_part(parameter, tensor, shard)
        target = parameter if shard is None else parameter[self._slice(stored, shard)]
        if stored is not None and stored.one_per_part and tensor.numel() == 1:
            tensor = tensor.reshape(()).expand(target.shape)
        elif stored is not None and stored.axis is None and shard is None:
            tensor = tensor.expand(len(target), *tensor.shape)
        if target.shape != tensor.shape:
            raise ValueError(f"expected shape {tuple(target.shape)}, found {tuple(tensor.shape)}")
        target.copy_(tensor)

    def stored_dtype(self, parameter: Tensor, shard: str | None) -> torch.dtype:
        """Return the dtype that the checkpoint's tensor, or that of one part, must have."""
        stored = self._stored_as(parameter)
        if stored is None or not stored.parts or shard is None:
            return parameter.dtype
        return stored.parts[self._part_index(shard)].dtype

    def _load_part(self, stored: StoredTensor, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the tensor of a part that has its own shape and dtype; a shard of ``None`` means the bytes of all parts.

        Raises ``ValueError`` for another shape.
        """
        if shard is None:
            parameter.copy_(checked(tensor, tuple(parameter.shape)))
            return
        index = self._part_index(shard)
        part = stored.parts[index]
        tensor = self._own_rows(part, tensor, shard)
        stored.part(parameter, index).copy_(checked(tensor, part.shape))

    def _part_index(self, shard: str) -> int:
        raise ValueError(f"it has no part {shard!r}")

    def _own_rows(self, stored: StoredTensor, tensor: Tensor, shard: str) -> Tensor:
        """Return this rank's rows of a part's tensor."""
        return tensor

    def _held(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return the loaded tensors of one name, as ``LinearScheme.pack`` receives them."""
        stored = None if self._scheme is None else self._scheme.stored.get(name)
        if stored is None or not stored.parts:
            return {name: tensor}
        return {f"{name}.{index}": stored.part(tensor, index) for index in range(len(stored.parts))}

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of ``parameter`` in checkpoints, with all parts in one tensor and the parts of all ranks."""
        return self._all_ranks(parameter)

    def pack_weights(self) -> None:
        """Let the quantization or the kernel set prepare the weight for many multiplications."""
        bias = None if self.bias is None else self.bias.detach()
        names = list(self._scheme.stored) if self._scheme is not None and self._scheme.stored else ["weight"]
        held: dict[str, Tensor] = {}
        for name in names:
            if (tensor := getattr(self, name)) is not None:
                held.update(self._held(name, tensor.detach()))
        if not held:
            return
        self._multiply = self._pack(held["weight"], bias) if self._scheme is None else self._scheme.pack(held, bias)
        for name in ("bias", *names):
            setattr(self, name, None)

    @property
    def product(self) -> LinearFunction:
        """The function that multiplies. After ``pack_weights`` it holds the weight, in a closure or its attributes."""
        return self._multiply

    @property
    def parts(self) -> Mapping[str, slice]:
        """Columns of the product that belong to each part; empty if there is only one."""
        return {}

    @property
    def input_shard(self) -> RankShard | None:
        """This rank's part of the checkpoint's columns; ``None``: all."""
        return None

    def output_shard(self, part: str | None) -> RankShard | None:
        """Return this rank's part of the checkpoint's rows, or of those of one part; ``None``: all."""
        return None

    def wrap_product(self, around: Callable[[LinearFunction], LinearFunction]) -> None:
        """Multiply by ``around(product)`` from now on, where ``product`` multiplied so far. Called after
        ``pack_weights``.
        """
        self._multiply = around(self._multiply)

    def _all_ranks(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of ``parameter`` with the parts of all ranks."""
        return tuple(parameter.shape)

    def _own_part(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> Tensor:
        """Return this rank's part of a checkpoint's tensor. Raises ``ValueError`` if its shape is wrong."""
        return tensor

    @property
    def _part_sizes(self) -> tuple[int, ...]:
        """Rows of each part."""
        return (self.size_out,)

    def _slice(self, stored: StoredTensor | None, shard: str) -> slice | tuple[int | slice, ...]:
        raise ValueError(f"it has no part {shard!r}")

    def _stored_as(self, parameter: Tensor) -> StoredTensor | None:
        stored = {} if self._scheme is None else self._scheme.stored
        return next((stored_tensor for name, stored_tensor in stored.items() if getattr(self, name) is parameter), None)

    def _plain(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


def checked(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``tensor``. Raises ``ValueError`` if its shape is not ``shape``."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"expected shape {shape}, found {tuple(tensor.shape)}")
    return tensor


def resized(parameter: Tensor, dimension: int | None, size: int) -> tuple[int, ...]:
    """Return the shape of ``parameter`` with another size of one dimension."""
    return tuple(size if index == dimension else own for index, own in enumerate(parameter.shape))


class RowParallelLinear(Linear):
    """A matrix whose columns the ranks share: each multiplies by its part of the input, and the products are summed.

    The input is the output of a ``MergedColumnParallelLinear``, divided in the same way. The bias is added by one rank.

    Args:
        size_in: columns of all ranks. Raises ``ConfigError`` if the ranks cannot share them.
        size_out: rows.
        env: the environment that the model is built in.
        bias: whether there is one.
    """

    def __init__(self, size_in: int, size_out: int, env: BuildEnv, *, bias: bool = False) -> None:
        self._columns = shard_slice(size_in, env.ranks)
        super().__init__(self._columns.stop - self._columns.start, size_out, env, bias=bias)
        self._whole_in = size_in
        self._reduce = env.ranks.all_reduce if env.ranks.size > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[T, out]`` of ``[T, in]`` (this rank's part)."""
        product = self._multiply(x)
        return product if self._reduce is None else self._reduce(product)

    def _all_ranks(self, parameter: Tensor) -> tuple[int, ...]:
        """Return ``[out, in]``, or ``[out]``, or the shape that a quantized checkpoint has."""
        if (stored := self._stored_as(parameter)) is not None:
            return resized(parameter, stored.inner, -(-self._whole_in // stored.columns))
        return tuple(parameter.shape) if parameter.dim() == 1 else (parameter.shape[0], self._whole_in)

    @property
    def input_shard(self) -> RankShard | None:
        """This rank's part of the checkpoint's columns; ``None``: all."""
        return None if self._reduce is None else RankShard((self._columns,), self._whole_in)

    def pack_weights(self) -> None:
        """Pack like ``Linear``; only rank 0 keeps the bias."""
        if self.bias is not None and self._ranks.rank > 0:
            self.bias.detach().zero_()
        super().pack_weights()

    def _own_part(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> Tensor:
        if (stored := self._stored_as(parameter)) is not None:
            return stored.own_columns(tensor, self._columns)
        tensor = checked(tensor, self._all_ranks(parameter))
        return tensor if tensor.dim() == 1 else tensor[:, self._columns]


class MergedColumnParallelLinear(Linear):
    """Several matrices with the same input, stacked by rows and multiplied at once.

    Ranks share the rows of each part; the output is the input of a ``RowParallelLinear``.

    Args:
        size_in: columns of every part.
        parts: rows of each part, in order and of all ranks, e.g. ``{"q": 896, "k": 128, "v": 128}``.
        env: the environment that the model is built in.
        bias: whether the parts have biases.
        heads: number of heads of the parts that consist of attention heads; a head belongs to one rank, or to several
            if there are more ranks than heads. Raises ``ConfigError`` if the ranks cannot share them.
    """

    def __init__(
        self,
        size_in: int,
        parts: Mapping[str, int],
        env: BuildEnv,
        *,
        bias: bool = False,
        heads: Mapping[str, int] | None = None,
    ) -> None:
        self._whole = dict(parts)
        units = {} if heads is None else heads
        self._own = {
            name: shard_slice(size, env.ranks, units=units.get(name), label="heads" if name in units else "rows")
            for name, size in parts.items()
        }
        self._sizes = tuple(rows.stop - rows.start for rows in self._own.values())
        super().__init__(size_in, sum(self._sizes), env, bias=bias)
        self.shards = tuple(parts)
        starts = [sum(self._sizes[:index]) for index in range(len(parts))]
        self._rows = {
            name: slice(start, start + size) for name, start, size in zip(parts, starts, self._sizes, strict=True)
        }

    @property
    def parts(self) -> Mapping[str, slice]:
        """Columns of the product that belong to each part."""
        return self._rows

    def output_shard(self, part: str | None) -> RankShard | None:
        """Return this rank's part of the checkpoint's rows, or of those of one part; ``None``: all."""
        if self._ranks.size == 1:
            return None
        if part is not None:
            return RankShard((self._own[part],), self._whole[part])
        pieces, start = [], 0
        for name, rows in self._own.items():
            pieces.append(slice(start + rows.start, start + rows.stop))
            start += self._whole[name]
        return RankShard(tuple(pieces), start)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Call ``forward`` and return the parts of the result, as views."""
        parts: tuple[Tensor, ...] = self(x).split(self._sizes, dim=-1)
        return parts

    def _all_ranks(self, parameter: Tensor) -> tuple[int, ...]:
        """Return ``[out, in]`` or ``[out]`` of all parts, or the shape that a quantized checkpoint has."""
        if (stored := self._stored_as(parameter)) is not None:
            if stored.parts:
                return tuple(parameter.shape)
            return resized(parameter, stored.axis, sum(-(-size // stored.rows) for size in self._whole.values()))
        return (sum(self._whole.values()), *parameter.shape[1:])

    def _own_part(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> Tensor:
        if (stored := self._stored_as(parameter)) is not None:
            return self._own_stored(stored, tensor, shard)
        if shard is not None:
            return checked(tensor, (self._whole[shard], *parameter.shape[1:]))[self._own[shard]]
        parts = checked(tensor, self._all_ranks(parameter)).split_with_sizes(list(self._whole.values()))
        return torch.cat([part[rows] for part, rows in zip(parts, self._own.values(), strict=True)])

    def _own_stored(self, stored: StoredTensor, tensor: Tensor, shard: str | None) -> Tensor:
        if shard is not None:
            return stored.own_rows(tensor, self._own[shard])
        if stored.axis is None or tensor.numel() == 1:
            return tensor
        parts = tensor.split_with_sizes([-(-size // stored.rows) for size in self._whole.values()], stored.axis)
        own = [stored.own_rows(part, rows) for part, rows in zip(parts, self._own.values(), strict=True)]
        return torch.cat(own, stored.axis)

    def _part_index(self, shard: str) -> int:
        return self.shards.index(shard)

    def _own_rows(self, stored: StoredTensor, tensor: Tensor, shard: str) -> Tensor:
        return tensor if self._ranks.size == 1 else stored.own_rows(tensor, self._own[shard])

    @property
    def _part_sizes(self) -> tuple[int, ...]:
        return self._sizes

    def _slice(self, stored: StoredTensor | None, shard: str) -> slice | tuple[int | slice, ...]:
        return self._rows[shard] if stored is None else stored.part_index(self.shards.index(shard), self._sizes)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """A matrix whose rows the ranks share; the output is the input of a ``RowParallelLinear``.

    Args:
        size_in: columns.
        size_out: rows of all ranks.
        env: the environment that the model is built in.
        bias: whether there is one.
        heads: number of attention heads, if the rows are heads. Raises ``ConfigError`` if the ranks cannot share them.
    """

    def __init__(
        self, size_in: int, size_out: int, env: BuildEnv, *, bias: bool = False, heads: int | None = None
    ) -> None:
        super().__init__(size_in, {"": size_out}, env, bias=bias, heads=None if heads is None else {"": heads})

    @property
    def parts(self) -> Mapping[str, slice]:
        """None: there is only one."""
        return {}
