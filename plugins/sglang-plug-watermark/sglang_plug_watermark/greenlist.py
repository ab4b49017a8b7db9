"""Which tokens are green: a hash of the key, the token before and the token itself. On the host; torch-free.

The paper draws exactly ``gamma`` of the vocabulary for each token before. Here each token is green with probability
``gamma``, independently of the others, so that a device can tell for a token without drawing for all others. The test
of the paper assumes no more than that.
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
    """32 bits, each of which depends on all bits of ``number``, of which the lowest 32 count."""
    number &= MASK
    number = ((number ^ (number >> 16)) * FIRST) & MASK
    number = ((number ^ (number >> 13)) * SECOND) & MASK
    return number ^ (number >> 16)


def key_hash(key: int) -> int:
    """32 bits of a key, of which the lowest 64 count."""
    return mixed(mixed(key) + (key >> BITS) * GOLDEN)


def threshold(gamma: float) -> int:
    """A token is green if its hash is below."""
    return round(gamma * (1 << BITS))


def is_green(key: int, previous: int, token: int, gamma: float) -> bool:
    """True if ``token`` is green behind ``previous``."""
    return mixed(mixed(key_hash(key) + previous * GOLDEN) ^ mixed(token)) < threshold(gamma)


@dataclass(frozen=True, slots=True)
class Detection:
    """The evidence of a watermark in a text."""

    counted: int
    """Different pairs of tokens that follow each other."""
    green: int
    """Those whose second token is green."""
    gamma: float

    @property
    def z_score(self) -> float:
        """How many standard deviations more are green than of a text without the watermark; 0 without any pair."""
        if not self.counted:
            return 0.0
        spread = math.sqrt(self.counted * self.gamma * (1 - self.gamma))
        return (self.green - self.gamma * self.counted) / spread

    @property
    def p_value(self) -> float:
        """How often a text without the watermark has at least this score."""
        return math.erfc(self.z_score / math.sqrt(2)) / 2


def detect(tokens: Sequence[int], key: int, gamma: float) -> Detection:
    """Count the green tokens of a text. A pair that occurs again says nothing new and counts once, as in the paper."""
    pairs = set(zip(tokens, tokens[1:], strict=False))
    return Detection(len(pairs), sum(is_green(key, previous, token, gamma) for previous, token in pairs), gamma)
