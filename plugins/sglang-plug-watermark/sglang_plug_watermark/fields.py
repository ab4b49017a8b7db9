"""Request fields and settings of the watermark."""

from __future__ import annotations

from dataclasses import dataclass

KEY = 15485863
"""The default key. Anybody who knows the key can detect and remove the watermark, so deployments keep theirs secret."""
GAMMA = 0.25
LARGEST_DELTA = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSettings:
    """Settings of the server: ``--set watermark.key=N``."""

    key: int = KEY
    """Key of requests without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkOptions:
    """Watermark of a request."""

    gamma: float = GAMMA
    """Share of the vocabulary that is green, between 0 and 1."""
    delta: float = 2.0
    """Added to the logits of green tokens."""
    key: int | None = None
    """Decides which tokens are green; by default the server's key."""

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma < 1.0:
            raise ValueError(f"gamma must be between 0 and 1, got {self.gamma}")
        if not 0.0 <= self.delta <= LARGEST_DELTA:
            raise ValueError(f"delta must be between 0 and {LARGEST_DELTA:g}, got {self.delta}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkFields:
    """The request field; an empty object takes the defaults."""

    watermark: WatermarkOptions | None = None
