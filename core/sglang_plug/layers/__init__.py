"""Layers for model authors: they know their checkpoint shards and compute with the selected kernels."""

from __future__ import annotations

from .activation import activation, gated_activation
from .embedding import Embedding, Head
from .gated import Gated
from .linear import Linear, Packed, Row
from .moe import Experts, Router
from .norm import RMSNorm
from .recorder import ExpertRecorder
from .rotary import Rope
from .unpacked import Unpacking

__all__ = [
    "Embedding",
    "ExpertRecorder",
    "Experts",
    "Gated",
    "Head",
    "Linear",
    "Packed",
    "RMSNorm",
    "Rope",
    "Router",
    "Row",
    "Unpacking",
    "activation",
    "gated_activation",
]
