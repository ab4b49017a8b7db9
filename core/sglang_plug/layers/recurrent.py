"""Parts of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

from sglang_plug.batch import ForwardBatch
from sglang_plug.model import BuildEnv
from sglang_plug.recurrent import Recurrent, StateShape

from .activation import activation
from .linear import checked


class Fading(nn.Module):
    """A layer whose states fade by ``-exp(A_log)``, which is computed once.

    Args:
        shape: of ``A_log``, as checkpoints store it.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.empty(shape))
        self._fading: Tensor | None = None

    @property
    def fading(self) -> Tensor:
        """As ``A_log``, float32, below 0."""
        return -self.A_log.detach().float().exp() if self._fading is None else self._fading

    def pack_weights(self) -> None:
        """After loading: keep it."""
        self._fading = self.fading


class ShortConv(nn.Module):
    """A causal convolution of each channel over its last tokens, as checkpoints store it.

    Args:
        channels: how many.
        width: tokens, the new one included.
        env: the surroundings the model is built in.
        state: the index of its state among the model's (``Model.state_shapes``); ``shape`` tells what that is like.
        bias: whether channels have one.
        parts: channels by the name of each shard, in order, where checkpoints have a tensor for each.
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
        ends = list(accumulate((parts or {}).values()))
        self._rows = {
            name: slice(end - size, end) for (name, size), end in zip((parts or {}).items(), ends, strict=True)
        }
        self.shards = tuple(self._rows)
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.state = state
        self._convolve = env.kernels.causal_conv

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the checkpoint's tensor, or that of one part. Raises ``ValueError`` if the shapes differ."""
        target = parameter if shard is None else parameter[self._rows[shard]]
        target.copy_(checked(tensor, tuple(target.shape)))

    @staticmethod
    def shape(channels: int, width: int) -> StateShape:
        """What it keeps of a sequence: the inputs before, in the model's dtype."""
        return StateShape(shape=(width - 1, channels))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """``[T, channels]`` to ``[T, channels]``."""
        states = recurrent(batch)
        return self._convolve(x, self.weight[:, 0], self.bias, states.pool.states[self.state], states.runs)


class GatedRMSNorm(nn.Module):
    """``weight * x / rms(x) * silu(gate)`` over the last dimension, or over each of several groups of it.

    Args:
        size: width of the last dimension.
        eps: added to the mean square.
        groups: parts of ``size`` that are normalised on their own.
        gate_first: normalise ``x * silu(gate)`` instead.
        activation_name: in place of ``silu``, as checkpoints call it.
    """

    def __init__(
        self, size: int, eps: float, *, groups: int = 1, gate_first: bool = False, activation_name: str = "silu"
    ) -> None:
        super().__init__()
        self._activate = activation(activation_name)
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.groups, self.gate_first = eps, groups, gate_first

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Same shape and dtype as ``x``."""
        wide, factor = x.float(), self._activate(gate.float())
        if self.gate_first:
            return self.weight * self._normalised(wide * factor).to(x.dtype)
        return ((self.weight * self._normalised(wide).to(x.dtype)) * factor).to(x.dtype)

    def _normalised(self, wide: Tensor) -> Tensor:
        parts = wide.view(*wide.shape[:-1], self.groups, -1)
        return (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.eps)).view(wide.shape)


def recurrent(batch: ForwardBatch) -> Recurrent:
    """The step's recurrent states."""
    assert batch.recurrent is not None, "the model's state_shapes does not say that it has recurrent states"
    return batch.recurrent
