"""Prompts that begin alike and arrive together: one computes the prefix, the others wait and take it from the cache."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from sglang_plug.contracts.serving.cache import Match

from .sequence import Sequence

SHARED_RUN = 32
"""A waiting sequence waits for the prefix of one being computed if both continue with this many equal tokens."""


def continuation(sequence: Sequence, match: Match | None) -> Hashable:
    """Return a key of the prefix that ``sequence`` computes next; ``None`` if it is short or not shared."""
    start = len(match.slots) if match is not None else 0
    if match is None or match.node is None or sequence.reusable - start < SHARED_RUN:
        return None
    return match.node, tuple(sequence.keys(start, start + SHARED_RUN))


def prefixes_in_work(running: Iterable[Sequence]) -> set[Hashable]:
    """Return the keys of the prefixes that running sequences compute."""
    prefilling = (one for one in running if len(one.tokens) - one.computed > max(1, one.last_step_len))
    return {key for one in prefilling if (key := continuation(one, one.match))}
