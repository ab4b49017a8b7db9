"""Options of the n-gram drafter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NGramSettings:
    """Settings given as ``--set ngram.KEY=VALUE``."""

    min_match: int = 3
    """Number of last tokens that must occur earlier for their continuation to be drafted."""
    max_match: int = 8
    """Maximum tokens compared to choose among several matches; the longest match is taken."""
    window: int = 16384
    """Number of last prompt tokens that are indexed. Each takes about 150 bytes of the host's memory."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"min_match is {self.min_match}, but must be between 1 and max_match, {self.max_match}")
        if self.window < 0:
            raise ValueError(f"window is {self.window}, but must not be negative")
