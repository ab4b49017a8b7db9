"""The part of the KV pool that admission keeps free for the growth of running sequences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GrowthReserve:
    """Fraction of the remaining output of running sequences that admission keeps free.

    Most outputs end before their limit, so the fraction falls with each step; a retraction shows that it was too small.
    """

    fraction: float = 0.5
    least: float = 0.1
    decay: float = 0.002
    """Decrease with each step."""
    increase: float = 0.2
    """Increase with each retraction."""

    def step_planned(self) -> None:
        """Lower the fraction, as a step was planned."""
        self.fraction = max(self.least, self.fraction - self.decay)

    def retracted(self) -> None:
        """Raise the fraction, as a sequence was retracted."""
        self.fraction = min(1.0, self.fraction + self.increase)

    def tokens(self, growth: int) -> int:
        """Return how many slots to keep free for ``growth`` tokens that may still be generated."""
        return int(growth * self.fraction)
