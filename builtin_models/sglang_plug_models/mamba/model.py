"""Mamba (Gu and Dao, 2023), Falcon-Mamba (TII, 2024) and Mamba-2 (Dao and Gu, 2024): a mixer in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, StateShape
from sglang_plug.layers import GatedRMSNorm, RMSNorm
from sglang_plug_models.common.hybrid import AttentionFree, SingleLayer
from sglang_plug_models.common.state_space import Mamba, Mamba2, Mamba2Shape, MambaShape


def shape_of(config: Any) -> MambaShape:
    """Return the sizes of Mamba's mixers."""
    return MambaShape(
        inner=config.intermediate_size,
        state=config.state_size,
        rank=int(config.time_step_rank),
        width=config.conv_kernel,
    )


def mamba2_shape_of(config: Any) -> Mamba2Shape:
    """Return the sizes of Mamba-2's mixers."""
    return Mamba2Shape(
        heads=config.num_heads,
        dim=config.head_dim,
        groups=config.n_groups,
        state=config.state_size,
        width=config.conv_kernel,
    )


class WeightlessNorm(nn.Module):
    """``x / rms(x)`` over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``, keeping shape and dtype."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class MambaLM(AttentionFree):
    """The causal language model of Mamba, Mamba-2 and Falcon-Mamba."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "backbone": ("model", None),
        "embedding": ("embed_tokens", None),
        "embeddings": ("embed_tokens", None),
        "norm_f": ("norm", None),
    }

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a mixer."""
        return shape_of(config).states

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon, env)
        return SingleLayer(norm, self.mixer(config, env, self.state_index(config, index)))

    def mixer(self, config: Any, env: BuildEnv, state: int) -> nn.Module:
        """Build a layer's mixer, whose first state is ``state``."""
        eps = getattr(config, "mixer_rms_eps", None)
        return Mamba(
            config.hidden_size,
            shape_of(config),
            env,
            state,
            norm=None if eps is None else partial(WeightlessNorm, eps=eps),
            activation_name=config.hidden_act,
            bias=config.use_bias,
            conv_bias=config.use_conv_bias,
        )


class FalconMamba(MambaLM):
    """Falcon-Mamba: ``dt``, ``B`` and ``C`` are normalised."""


class Mamba2LM(MambaLM):
    """Mamba-2."""

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a mixer."""
        return mamba2_shape_of(config).states

    def mixer(self, config: Any, env: BuildEnv, state: int) -> nn.Module:
        """Build a layer's mixer, whose first state is ``state``."""
        shape = mamba2_shape_of(config)
        return Mamba2(
            config.hidden_size,
            shape,
            env,
            state,
            norm=GatedRMSNorm(shape.inner, config.layer_norm_epsilon, groups=shape.groups, gate_first=True),
            activation_name=config.hidden_act,
            bias=config.use_bias,
            conv_bias=config.use_conv_bias,
            limits=config.time_step_limit,
        )
