"""Options of the quantizations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Settings:
    """``--set int8.KEY=VALUE``."""

    head: bool = False
    """Also the matrix that makes logits: faster again, and the part where rounding shows most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Settings:
    """``--set fp8.KEY=VALUE``; for weights that are converted when they are loaded."""

    head: bool = False
    """Also the matrix that makes logits."""
