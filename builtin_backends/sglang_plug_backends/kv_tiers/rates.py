"""Measured rates: how long loading a prefix takes, and how long computing it would."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_plug import StepStats

WEIGHT = 0.2
"""Weight of a new observation."""
LEAST_TOKENS = 32
"""Prompt tokens of the smallest step that tells how long prompts take."""


@dataclass(slots=True)
class TransferRate:
    """The rate at which a store returns blocks."""

    seconds_per_byte: float | None = None

    def observe(self, size: int, seconds: float) -> None:
        """Note that loading ``size`` bytes took ``seconds``."""
        if size > 0:
            self.seconds_per_byte = _mean(self.seconds_per_byte, seconds / size)

    def seconds(self, size: int) -> float:
        """Return how long loading ``size`` bytes probably takes; 0 if nothing was loaded yet."""
        return 0.0 if self.seconds_per_byte is None else size * self.seconds_per_byte


@dataclass(slots=True)
class PrefillRate:
    """The rate at which prompts are computed."""

    seconds_per_token: float | None = None

    def observe(self, stats: StepStats) -> None:
        """Note the duration of a step."""
        if stats.prefill_tokens >= LEAST_TOKENS and not stats.decode_sequences:
            self.seconds_per_token = _mean(self.seconds_per_token, stats.seconds / stats.prefill_tokens)

    def seconds(self, tokens: int) -> float | None:
        """Return how long computing ``tokens`` tokens probably takes; ``None`` if that is not known yet."""
        return None if self.seconds_per_token is None else tokens * self.seconds_per_token


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else (1 - WEIGHT) * mean + WEIGHT * value
