"""Options of the quantizations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Settings:
    """Settings given as ``--set int8.KEY=VALUE``."""

    head: bool = False
    """Quantize also the matrix that computes logits: faster again, but rounding shows most there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Settings:
    """Settings given as ``--set fp8.KEY=VALUE``, for weights that are converted at load time."""

    head: bool = False
    """Quantize also the matrix that computes logits."""
