"""Parts of recurrent layers: decay rates, short convolutions and gated normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

from sglang_plug.contracts.model.batch import ForwardBatch
from sglang_plug.contracts.model.model import BuildEnv
from sglang_plug.contracts.model.recurrent_state import RecurrentInputs, StateShape

from .activation import activation
from .linear import checked


class SSMDecay(nn.Module):
    """A layer whose states decay by the rate ``-exp(A_log)``, which is computed once.

    Args:
        shape: shape of ``A_log``, as checkpoints store it.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.empty(shape))
        self._rate: Tensor | None = None

    @property
    def rate(self) -> Tensor:
        """The rate ``-exp(A_log)``, float32, below 0, in the shape of ``A_log``."""
        return -self.A_log.detach().float().exp() if self._rate is None else self._rate

    def pack_weights(self) -> None:
        """Compute the rate once. Called after loading."""
        self._rate = self.rate


class ShortConv(nn.Module):
    """A causal convolution of each channel over its last tokens, as checkpoints store it.

    Args:
        channels: number of channels.
        width: number of tokens, the new one included.
        env: the environment that the model is built in.
        state: the index of its state among the model's (``Model.state_shapes``); ``shape`` returns the shape of that
            state.
        bias: whether channels have one.
        parts: number of channels by the name of each shard, in order, if checkpoints have a tensor for each. The
            tensors may also be equal pieces of the whole, whatever their names say: transformers writes them with
            ``torch.chunk``.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        env: BuildEnv,
        state: int,
        *,
        bias: bool = False,
        parts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        sizes = dict(parts or {})
        self._rows = _rows_of(sizes)
        self._equal_rows = _rows_of(_equal_sizes(sizes))
        self._is_equal: bool | None = None
        """True if the checkpoint's tensors are equal pieces; ``None`` while unknown."""
        self.shards = tuple(self._rows)
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.state = state
        self._convolve = env.kernels.causal_conv

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the checkpoint's tensor, or that of one part. Raises ``ValueError`` if the shapes differ."""
        target = parameter if shard is None else self._part(parameter, tensor, shard)
        target.copy_(checked(tensor, tuple(target.shape)))

    def _part(self, parameter: Tensor, tensor: Tensor, shard: str) -> Tensor:
        """Return the rows of a shard, by its size or as an equal piece; all tensors of a checkpoint agree."""
        own, equal = parameter[self._rows[shard]], parameter[self._equal_rows[shard]]
        if self._is_equal is None and own.shape != equal.shape and tensor.shape in (own.shape, equal.shape):
            self._is_equal = tensor.shape == equal.shape
        return equal if self._is_equal else own

    @staticmethod
    def shape(channels: int, width: int) -> StateShape:
        """Return the state that is kept of a sequence: its last inputs, in the model's dtype."""
        return StateShape(shape=(width - 1, channels))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Convolve ``[T, channels]``; return the same shape."""
        states = recurrent(batch)
        return self._convolve(x, self.weight[:, 0], self.bias, states.pool.states[self.state], states.spans)


def _rows_of(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return the rows of each part of a matrix, one below the other."""
    ends = accumulate(sizes.values())
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def _equal_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of pieces made by ``torch.chunk``: all equal, but the last may be smaller."""
    if not sizes:
        return {}
    total = sum(sizes.values())
    piece = -(-total // len(sizes))
    return {name: max(0, min(piece, total - index * piece)) for index, name in enumerate(sizes)}


class GatedRMSNorm(nn.Module):
    """The normalisation ``weight * x / rms(x) * silu(gate)`` over the last dimension, or over each of several groups of
    it.

    Args:
        size: width of the last dimension.
        eps: added to the mean square.
        groups: number of parts of ``size`` that are normalised separately.
        gate_first: normalise ``x * silu(gate)`` instead.
        activation_name: replaces ``silu``, by its name in checkpoints.
    """

    def __init__(
        self, size: int, eps: float, *, groups: int = 1, gate_first: bool = False, activation_name: str = "silu"
    ) -> None:
        super().__init__()
        self._activate = activation(activation_name)
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.groups, self.gate_first = eps, groups, gate_first

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Normalise ``x`` and multiply by the gate; return the same shape and dtype."""
        wide, factor = x.float(), self._activate(gate.float())
        if self.gate_first:
            return self.weight * self._normalised(wide * factor).to(x.dtype)
        return ((self.weight * self._normalised(wide).to(x.dtype)) * factor).to(x.dtype)

    def _normalised(self, wide: Tensor) -> Tensor:
        parts = wide.view(*wide.shape[:-1], self.groups, -1)
        return (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.eps)).view(wide.shape)


def recurrent(batch: ForwardBatch) -> RecurrentInputs:
    """Return the step's recurrent states."""
    assert batch.recurrent is not None, "the model's state_shapes does not say that it has recurrent states"
    return batch.recurrent
