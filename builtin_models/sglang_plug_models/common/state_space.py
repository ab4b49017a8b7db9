"""State-space mixers shared by families: Mamba (Gu and Dao, 2023) and Mamba-2 (Dao and Gu, 2024). Not a plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import GatedRMSNorm, Linear, ShortConv, SSMDecay, activation, recurrent

UNLIMITED = (0.0, float("inf"))
"""Unrestricted time steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Shape:
    """Sizes of a Mamba-2 mixer."""

    heads: int
    dim: int
    """Width of a head."""
    groups: int
    """Number of groups of heads that share ``B`` and ``C``."""
    state: int
    """State numbers per channel."""
    width: int
    """Kernel width of the convolution in tokens."""

    @property
    def inner(self) -> int:
        """Return the channels of all heads."""
        return self.heads * self.dim

    @property
    def channels(self) -> int:
        """Return the channels of the convolution."""
        return self.inner + 2 * self.groups * self.state

    @property
    def states(self) -> tuple[StateShape, ...]:
        """Return the state shapes of a layer per sequence: convolution and scan."""
        scanned = StateShape(shape=(self.heads, self.state, self.dim), dtype=torch.float32)
        return ShortConv.shape(self.channels, self.width), scanned


def mamba2_shape(config: Any) -> Mamba2Shape:
    """Return the sizes from a configuration with the usual field names."""
    return Mamba2Shape(
        heads=config.mamba_n_heads,
        dim=config.mamba_d_head,
        groups=config.mamba_n_groups,
        state=config.mamba_d_state,
        width=config.mamba_d_conv,
    )


class Mamba2(SSMDecay):
    """A short convolution, then ``S = exp(dt * A) * S + dt * B x`` and ``C @ S + D * x``, which is gated.

    Args:
        hidden: width of input and output.
        shape: its sizes.
        env: the environment in which the model is built.
        state: the index of the first of its states among the model's.
        norm: how the gated output is normalised; ``None``: not at all.
        activation_name: of what the convolution gives, as checkpoints call it.
        bias: whether the projections have one.
        out_bias: whether the last of them has; ``None``: as the first.
        conv_bias: whether the convolution has one.
        limits: minimum and maximum ``dt``.
    """

    def __init__(
        self,
        hidden: int,
        shape: Mamba2Shape,
        env: BuildEnv,
        state: int,
        *,
        norm: GatedRMSNorm | None,
        activation_name: str = "silu",
        bias: bool = False,
        out_bias: bool | None = None,
        conv_bias: bool = True,
        limits: tuple[float, float] = UNLIMITED,
    ) -> None:
        super().__init__(shape.heads)
        self.shape, self.limits, self.state = shape, limits, state + 1
        self.in_proj = Linear(hidden, shape.inner + shape.channels + shape.heads, env, bias=bias)
        self.conv1d = ShortConv(shape.channels, shape.width, env, state, bias=conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(shape.heads))
        self.D = nn.Parameter(torch.empty(shape.heads))
        self.norm = norm
        self.out_proj = Linear(shape.inner, hidden, env, bias=bias if out_bias is None else out_bias)
        self._activate = activation(activation_name)
        self._scan = env.kernels.linear_attention

    def forward(self, x: Tensor, angles: Any, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        shape, states = self.shape, recurrent(batch)
        gate, mixed, step = self.project(x).split_with_sizes((shape.inner, shape.channels, shape.heads), dim=-1)
        mixed = self._activate(self.conv1d(mixed, batch))
        shared = shape.groups * shape.state
        value, write, read = mixed.split_with_sizes((shape.inner, shared, shared), dim=-1)
        wide = value.view(-1, shape.heads, shape.dim).float()
        step = F.softplus(step.float() + self.dt_bias.float()).clamp(*self.limits)
        result = self._scan(
            read.view(-1, shape.groups, shape.state),
            write.view(-1, shape.groups, shape.state),
            wide * step[..., None],
            step * self.rate,
            states.pool.states[self.state],
            states.spans,
        )
        result = (result + wide * self.D.float()[:, None]).flatten(1)
        gated = result * F.silu(gate.float()) if self.norm is None else self.norm(result, gate)
        return self.out_proj(gated.to(x.dtype))

    def project(self, x: Tensor) -> Tensor:
        """Project ``[T, hidden]`` to gate, convolution input and time steps, concatenated."""
        return self.in_proj(x)


def mamba2_of(config: Any, env: BuildEnv, state: int) -> Mamba2:
    """Build a mixer that gates before it normalises, from a configuration with the usual field names."""
    shape = mamba2_shape(config)
    return Mamba2(
        config.hidden_size,
        shape,
        env,
        state,
        norm=GatedRMSNorm(shape.inner, config.rms_norm_eps, groups=shape.groups, gate_first=True),
        activation_name=config.hidden_act,
        bias=config.mamba_proj_bias,
        conv_bias=config.mamba_conv_bias,
        limits=config.time_step_limit or UNLIMITED,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaShape:
    """Sizes of a Mamba mixer."""

    inner: int
    """Number of channels."""
    state: int
    """State numbers per channel."""
    rank: int
    """Rank of the projection to ``dt``."""
    width: int
    """Kernel width of the convolution in tokens."""

    @property
    def states(self) -> tuple[StateShape, ...]:
        """Return the state shapes of a layer per sequence: convolution and scan."""
        return ShortConv.shape(self.inner, self.width), StateShape(shape=(self.inner, self.state), dtype=torch.float32)


class Mamba(SSMDecay):
    """A short convolution, then ``S = exp(dt * A) * S + dt * B x`` of each channel, and ``C @ S + D * x``, gated.

    Args:
        hidden: width of input and output.
        shape: its sizes.
        env: the environment in which the model is built.
        state: the index of the first of its states among the model's.
        norm: from a width, what normalises each of ``dt``, ``B`` and ``C``; ``None``: nothing does.
        activation_name: of what the convolution gives, as checkpoints call it.
        bias: whether the projections of input and output have one.
        conv_bias: whether the convolution has one.
    """

    def __init__(
        self,
        hidden: int,
        shape: MambaShape,
        env: BuildEnv,
        state: int,
        *,
        norm: Callable[[int], nn.Module] | None = None,
        activation_name: str = "silu",
        bias: bool = False,
        conv_bias: bool = True,
    ) -> None:
        super().__init__(shape.inner, shape.state)
        self.shape, self.state = shape, state + 1
        self.in_proj = Linear(hidden, 2 * shape.inner, env, bias=bias)
        self.conv1d = ShortConv(shape.inner, shape.width, env, state, bias=conv_bias)
        self.x_proj = Linear(shape.inner, shape.rank + 2 * shape.state, env)
        self.dt_layernorm = nn.Identity() if norm is None else norm(shape.rank)
        self.b_layernorm = nn.Identity() if norm is None else norm(shape.state)
        self.c_layernorm = nn.Identity() if norm is None else norm(shape.state)
        self.dt_proj = Linear(shape.rank, shape.inner, env, bias=True)
        self.D = nn.Parameter(torch.empty(shape.inner))
        self.out_proj = Linear(shape.inner, hidden, env, bias=bias)
        self._activate = activation(activation_name)
        self._scan = env.kernels.selective_scan

    def forward(self, x: Tensor, angles: Any, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        shape, states = self.shape, recurrent(batch)
        mixed, gate = self.in_proj(x).chunk(2, dim=-1)
        mixed = self._activate(self.conv1d(mixed, batch))
        step, write, read = self.x_proj(mixed).split_with_sizes((shape.rank, shape.state, shape.state), dim=-1)
        wide = mixed.float()
        result = self._scan(
            wide,
            F.softplus(self.dt_proj(self.dt_layernorm(step)).float()),
            self.rate,
            self.b_layernorm(write),
            self.c_layernorm(read),
            states.pool.states[self.state],
            states.spans,
        )
        return self.out_proj(((result + wide * self.D.float()) * F.silu(gate.float())).to(x.dtype))
