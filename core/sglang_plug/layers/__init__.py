"""Layers for model authors: they know their checkpoint shards and compute with the selected kernels."""

from __future__ import annotations

from .activation import activation, gated_activation
from .embedding import Embedding, ParallelLMHead
from .gated import GateUpLinear
from .linear import ColumnParallelLinear, Linear, MergedColumnParallelLinear, RowParallelLinear
from .moe import Experts, Router
from .norm import RMSNorm, SharedRMSNorm
from .recurrent import GatedRMSNorm, ShortConv, SSMDecay, recurrent
from .rotary import Rope
from .unpacked import Unpacking

__all__ = [
    "ColumnParallelLinear",
    "Embedding",
    "Experts",
    "GateUpLinear",
    "GatedRMSNorm",
    "Linear",
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "RMSNorm",
    "Rope",
    "Router",
    "RowParallelLinear",
    "SSMDecay",
    "SharedRMSNorm",
    "ShortConv",
    "Unpacking",
    "activation",
    "gated_activation",
    "recurrent",
]
