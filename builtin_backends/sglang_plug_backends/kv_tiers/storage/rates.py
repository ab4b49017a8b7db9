"""Measured rates: how long loading a prefix takes, and how long computing it would."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_plug import StepStats

WEIGHT = 0.2
"""Least weight of a new observation."""
HALF_LIFE = 10.0
"""Seconds after which earlier observations of a transfer count half."""
MIN_TOKENS = 32
"""Prompt tokens of the smallest step that tells how long prompts take."""


@dataclass(slots=True)
class Rate:
    """Seconds per unit of work, such as a byte or a call.

    The longer nothing was observed, the more a new observation weighs: the old ones say little about the present.
    """

    seconds_per_unit: float | None = None
    observed: float = 0.0
    """Time of the last observation."""

    def observe(self, units: int, seconds: float, now: float) -> None:
        """Note that ``units`` took ``seconds``."""
        if units > 0:
            age = max(0.0, now - self.observed)
            weight = max(WEIGHT, 1.0 - 0.5 ** (age / HALF_LIFE))
            self.seconds_per_unit = _mean(self.seconds_per_unit, seconds / units, weight)
            self.observed = now

    def seconds(self, units: int) -> float:
        """Return how long ``units`` probably take; 0 if nothing was observed yet."""
        return 0.0 if self.seconds_per_unit is None else units * self.seconds_per_unit


@dataclass(slots=True)
class PrefillRate:
    """The rate at which prompts are computed."""

    seconds_per_token: float | None = None

    def observe(self, stats: StepStats) -> None:
        """Note the duration of a step."""
        if stats.prefill_tokens >= MIN_TOKENS and not stats.decode_sequences:
            self.seconds_per_token = _mean(self.seconds_per_token, stats.seconds / stats.prefill_tokens, WEIGHT)

    def seconds(self, tokens: int) -> float | None:
        """Return how long computing ``tokens`` tokens probably takes; ``None`` if that is not known yet."""
        return None if self.seconds_per_token is None else tokens * self.seconds_per_token


def _mean(mean: float | None, value: float, weight: float) -> float:
    return value if mean is None else (1 - weight) * mean + weight * value
