"""Layers for model authors: they know their checkpoint shards and compute with the selected kernels."""

from __future__ import annotations

from .activation import activation, gated_activation
from .embedding import Embedding, Head
from .gated import Gated
from .linear import Column, Linear, Packed, Row
from .moe import Experts, Router
from .norm import RMSNorm, SharedRMSNorm
from .recurrent import GatedRMSNorm, ShortConv, SSMDecay, recurrent
from .rotary import Rope
from .unpacked import Unpacking

__all__ = [
    "Column",
    "Embedding",
    "Experts",
    "Gated",
    "GatedRMSNorm",
    "Head",
    "Linear",
    "Packed",
    "RMSNorm",
    "Rope",
    "Router",
    "Row",
    "SSMDecay",
    "SharedRMSNorm",
    "ShortConv",
    "Unpacking",
    "activation",
    "gated_activation",
    "recurrent",
]
