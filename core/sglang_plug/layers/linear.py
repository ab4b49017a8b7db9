"""Matrices: one, or several that share their input and are multiplied together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.config import ConfigError
from sglang_plug.kernels import LinearFunction
from sglang_plug.model import BuildEnv
from sglang_plug.quantization import LinearScheme, Matrix, MatrixRole, Quantization, StoredTensor


class Linear(nn.Module):
    """``x @ weight.T + bias``, ``[T, in]`` to ``[T, out]``.

    After ``pack_weights`` the kernel set, or the quantization, holds the weight in its own layout and the parameter is
    gone. Where the surroundings have a quantization, the weight has no memory until ``quantize_weights``, or until
    ``make_room`` if it is to be converted.
    """

    role: ClassVar[MatrixRole] = "linear"
    plain: bool = False
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
        self._scheme: LinearScheme | None = None
        self._multiply: LinearFunction = self._plain

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` to ``[T, out]``."""
        return self._multiply(x)

    def quantize_weights(self, name: str, checkpoint_names: Sequence[str], quantization: Quantization) -> bool:
        """Ask ``quantization`` for a scheme, and make room for what is to be kept as it is loaded; true if there is a
        scheme.

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
                dtype=self.weight.dtype,
                plain=self.plain,
            )
        )
        if self._scheme is not None and self._scheme.stored:
            if self.plain:
                raise ConfigError(f"{quantization.name!r} expects stored tensors of {name!r}, which has none")
            self.weight = None
            for part, stored in self._scheme.stored.items():
                room = torch.empty(stored.shape, dtype=stored.dtype, device=self._device)
                setattr(self, part, nn.Parameter(room, requires_grad=False))
        elif self._scheme is None:
            self.make_room()
        return self._scheme is not None

    @property
    def converts(self) -> bool:
        """True if the weight that is loaded is only there to be packed: the sooner, the less memory is taken."""
        return self._scheme is not None and not self._scheme.stored and not self.plain

    def make_room(self) -> None:
        """Give the weight memory, unless it has some."""
        if self.weight is not None and self.weight.is_meta:
            self.weight = nn.Parameter(torch.empty_like(self.weight, device=self._device))

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the checkpoint's tensor, or that of one part; ``None`` stands for all parts in one tensor.

        Raises ``ValueError`` if the shapes differ.
        """
        stored = self._stored_as(parameter)
        target = parameter if shard is None else parameter[self._slice(stored, shard)]
        if stored is not None and stored.one_per_part and tensor.numel() == 1:
            tensor = tensor.reshape(()).expand(target.shape)
        if target.shape != tensor.shape:
            raise ValueError(f"expected shape {tuple(target.shape)}, found {tuple(tensor.shape)}")
        target.copy_(tensor)

    def pack_weights(self) -> None:
        """Let the quantization or the kernel set prepare the weight for many multiplications."""
        bias = None if self.bias is None else self.bias.detach()
        names = list(self._scheme.stored) if self._scheme is not None and self._scheme.stored else ["weight"]
        held = {name: one.detach() for name in names if (one := getattr(self, name)) is not None}
        if not held:
            return
        self._multiply = self._pack(held["weight"], bias) if self._scheme is None else self._scheme.pack(held, bias)
        for name in ("bias", *names):
            setattr(self, name, None)

    def _slice(self, stored: StoredTensor | None, shard: str) -> slice | tuple[slice, ...]:
        raise ValueError(f"it has no part {shard!r}")

    def _stored_as(self, parameter: Tensor) -> StoredTensor | None:
        stored = {} if self._scheme is None else self._scheme.stored
        return next((one for name, one in stored.items() if getattr(self, name) is parameter), None)

    def _plain(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


class Packed(Linear):
    """Several matrices of one input, stored one below the other and multiplied at once.

    Args:
        size_in: columns of every part.
        parts: rows of each part, in order, e.g. ``{"q": 896, "k": 128, "v": 128}``.
        env: the surroundings the model is built in.
        bias: whether the parts have biases.
    """

    def __init__(self, size_in: int, parts: Mapping[str, int], env: BuildEnv, *, bias: bool = False) -> None:
        super().__init__(size_in, sum(parts.values()), env, bias=bias)
        self.shards = tuple(parts)
        self._sizes = tuple(parts.values())
        starts = [sum(self._sizes[:index]) for index in range(len(parts))]
        self._rows = {
            name: slice(start, start + size) for name, start, size in zip(parts, starts, self._sizes, strict=True)
        }

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """``forward``, and the result cut into the parts, as views."""
        found: tuple[Tensor, ...] = self(x).split(self._sizes, dim=-1)
        return found

    def _slice(self, stored: StoredTensor | None, shard: str) -> slice | tuple[slice, ...]:
        rows = self._rows[shard]
        return rows if stored is None else stored.slice(rows)
