"""Recognises prompts that begin alike: one of them is computed first, and the others reuse it."""

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
    """Return the keys of the prefixes that sequences in ``running`` compute."""
    prefilling = (sequence for sequence in running if sequence.computes_prompt)
    return {key for sequence in prefilling if (key := continuation(sequence, sequence.match)) is not None}
