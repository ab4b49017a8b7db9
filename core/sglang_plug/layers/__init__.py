"""Layers for model authors: they know their checkpoint shards and compute with the selected kernels."""

from __future__ import annotations

from .embedding import Embedding, Head
from .linear import Linear, Packed
from .norm import RMSNorm
from .rotary import Rope

__all__ = ["Embedding", "Head", "Linear", "Packed", "RMSNorm", "Rope"]
