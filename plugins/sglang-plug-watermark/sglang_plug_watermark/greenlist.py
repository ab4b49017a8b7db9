"""Decides which tokens are green, by a hash of the key, the previous token and the token. On the host; torch-free.

The paper makes exactly the fraction ``gamma`` of the vocabulary green after each token. Here each token is green with
probability ``gamma``, independently of the others, so that a device can decide about one token without permuting the
vocabulary. The statistical test of the paper assumes no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BITS = 32
MASK = (1 << BITS) - 1
GOLDEN = 0x9E3779B9
FIRST, SECOND = 0x85EBCA6B, 0xC2B2AE35
"""Multipliers of MurmurHash3's last step (Appleby 2011)."""


def mixed(number: int) -> int:
    """Return a 32-bit hash of the lowest 32 bits of ``number``."""
    number &= MASK
    number = ((number ^ (number >> 16)) * FIRST) & MASK
    number = ((number ^ (number >> 13)) * SECOND) & MASK
    return number ^ (number >> 16)


def key_hash(key: int) -> int:
    """Return a 32-bit hash of the lowest 64 bits of a key."""
    return mixed(mixed(key) + (key >> BITS) * GOLDEN)


def threshold(gamma: float) -> int:
    """Return the hash below which a token is green."""
    return round(gamma * (1 << BITS))


def is_green(key: int, previous: int, token: int, gamma: float) -> bool:
    """Return True if ``token`` is green after ``previous``."""
    return mixed(mixed(key_hash(key) + previous * GOLDEN) ^ mixed(token)) < threshold(gamma)


@dataclass(frozen=True, slots=True)
class Detection:
    """The evidence of a watermark in a text."""

    counted: int
    """Number of different pairs of consecutive tokens."""
    green: int
    """Number of those pairs whose second token is green."""
    gamma: float

    @property
    def z_score(self) -> float:
        """Standard deviations by which ``green`` exceeds its mean in texts without the watermark; 0 without pairs."""
        if not self.counted:
            return 0.0
        spread = math.sqrt(self.counted * self.gamma * (1 - self.gamma))
        return (self.green - self.gamma * self.counted) / spread

    @property
    def p_value(self) -> float:
        """Probability that a text without the watermark has at least this z-score."""
        return math.erfc(self.z_score / math.sqrt(2)) / 2


def detect(tokens: Sequence[int], key: int, gamma: float) -> Detection:
    """Count the green tokens of a text. Repeated pairs count once, as in the paper."""
    pairs = set(zip(tokens, tokens[1:], strict=False))
    return Detection(len(pairs), sum(is_green(key, previous, token, gamma) for previous, token in pairs), gamma)
