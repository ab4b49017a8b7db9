"""Options of the n-gram drafter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NGramSettings:
    """``--set ngram.KEY=VALUE``."""

    min_match: int = 3
    """Last tokens that must stand elsewhere, too, for what followed them there to be drafted."""
    max_match: int = 8
    """Among several such places the one is taken where the most tokens before are the same; no more are compared."""
    window: int = 16384
    """Tokens of a prompt, its last ones, that are looked at. Each takes about 150 bytes of the host's memory."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"min_match is {self.min_match}, but must be between 1 and max_match, {self.max_match}")
        if self.window < 0:
            raise ValueError(f"window is {self.window}, but must not be negative")
