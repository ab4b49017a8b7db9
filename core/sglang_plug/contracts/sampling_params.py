"""Sampling parameters of a request: frozen, validated, safe to send between processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

MAX_STOP_TOKENS = 256
GREEDY_BELOW = 1e-6
"""A temperature below this is greedy decoding."""
PROCESSED_PARAMS = (
    "logit_bias",
    "min_new_tokens",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Parameters that logits processors apply."""
INTEGERS = ("max_new_tokens", "min_new_tokens", "top_k")
NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


class RequestFieldError(ValueError):
    """A request field has a wrong value or cannot be used here; ``field`` is its path."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling parameters, in tokens. Stop strings are text: the API process searches for them.

    Raises ``ValueError`` with the parameter as its ``field`` if a value is no number, out of range or not finite.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    """Tokens before which ``stop_token_ids`` cannot be produced."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1 or 0 keeps the whole vocabulary."""
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()
    """End the output; includes the model's end-of-sequence tokens unless the caller ignores them."""
    seed: int | None = None
    """The same seed and prompt give the same tokens whatever else is in the batch."""
    processor_fields: Mapping[str, Any] = field(default_factory=dict)
    """Request fields that logits processors and step extensions declare, as plain data: field -> value."""

    def __post_init__(self) -> None:
        for name in INTEGERS:
            value = getattr(self, name)
            _check(name, _is(value, Integral), f"{name} must be an integer, got {value!r}")
        for name in NUMBERS:
            value = getattr(self, name)
            _check(name, _is(value, Real), f"{name} must be a number, got {value!r}")
        _check("seed", self.seed is None or _is(self.seed, Integral), f"seed must be an integer, got {self.seed!r}")
        self._check_lengths()
        self._check_distribution()
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            _check(name, -2.0 <= value <= 2.0, f"{name} must be in [-2, 2], got {value}")
        penalty = self.repetition_penalty
        _check("repetition_penalty", 0.0 < penalty <= 2.0, f"repetition_penalty must be in (0, 2], got {penalty}")
        _check(
            "stop_token_ids",
            len(self.stop_token_ids) <= MAX_STOP_TOKENS,
            f"at most {MAX_STOP_TOKENS} stop_token_ids are allowed, got {len(self.stop_token_ids)}",
        )
        for token in self.stop_token_ids:
            if not _is(token, Integral):
                raise RequestFieldError("stop_token_ids", f"stop_token_ids must be integers, got {token!r}")
        if not all(map(math.isfinite, self.logit_bias.values())):
            token, bias = next(item for item in self.logit_bias.items() if not math.isfinite(item[1]))
            raise RequestFieldError("logit_bias", f"logit_bias of token {token} must be finite, got {bias}")

    def _check_lengths(self) -> None:
        minimum, maximum = self.min_new_tokens, self.max_new_tokens
        _check("max_new_tokens", maximum >= 0, f"max_new_tokens must be at least 0, got {maximum}")
        _check("min_new_tokens", minimum >= 0, f"min_new_tokens must be at least 0, got {minimum}")
        _check(
            "min_new_tokens",
            minimum <= maximum,
            f"min_new_tokens must be at most max_new_tokens ({maximum}), got {minimum}",
        )

    def _check_distribution(self) -> None:
        _check(
            "temperature",
            math.isfinite(self.temperature) and self.temperature >= 0.0,
            f"temperature must be a finite number of at least 0, got {self.temperature}",
        )
        _check("top_p", 0.0 < self.top_p <= 1.0, f"top_p must be in (0, 1], got {self.top_p}")
        _check("top_k", self.top_k >= -1, f"top_k must be -1 (off) or at least 1, got {self.top_k}")
        _check("min_p", 0.0 <= self.min_p <= 1.0, f"min_p must be in [0, 1], got {self.min_p}")

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def _is(value: object, kind: type) -> bool:
    """Report whether ``value`` is a number of a kind; the engine's process cannot read ``True`` as one."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check(field: str, holds: bool, message: str) -> None:
    if not holds:
        raise RequestFieldError(field, message)
