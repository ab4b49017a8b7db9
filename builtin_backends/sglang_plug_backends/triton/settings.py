"""Options of the Triton backend and kernel set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonSettings:
    """Settings given as ``--set triton.KEY=VALUE``."""

    splits: int = 0
    """Number of splits of a sequence's context while decoding, a power of two; 0 decides by batch size and device."""
    overlap_launches: bool = True
    """Let each kernel start while the previous one ends, on GPUs of compute capability 9.0 or more."""

    def __post_init__(self) -> None:
        if self.splits < 0 or self.splits & (self.splits - 1):
            raise ValueError(f"splits must be 0 or a power of two, not {self.splits}")
