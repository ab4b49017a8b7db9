"""Time-sliced scheduling: a sequence that has run for long gives its place to a request that has waited for long.

Without it, requests that arrive when ``max_running`` sequences run wait until one of these ends, for minutes if their
outputs are long; and clients that read nothing would let everybody wait, because a client's own system accepts
hundreds of kilobytes before the server can notice that nobody reads them. Shorter requests are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sequence import Sequence

TURN_SECONDS = 5.0
"""Seconds after which a running sequence may lose its place, to a request that has waited as long."""
CHECKS_PER_TURN = 5
TOKENS_PER_GENERATED = 8
"""A sequence keeps its place until it has generated one token per so many of its tokens. So the sequences generate more
than they compute again, even if the prefix cache forgets all of them."""


@dataclass(slots=True)
class Turn:
    """The time for which a sequence has been running, or waiting."""

    since: float = 0.0
    """``time.monotonic()`` when the sequence was admitted, or when it was queued."""
    generated: int = 0
    """Tokens that the sequence had generated then."""


class TurnClock:
    """Decides which running sequences give their places to which waiting requests.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_check = 0.0

    @property
    def is_due(self) -> bool:
        """Report whether it is time to look at the queue again."""
        return self._now() >= self._next_check

    def begin(self, sequence: Sequence) -> None:
        """Note that ``sequence`` is queued, or admitted."""
        sequence.turn = Turn(self._now(), sequence.generated)

    def exchange(self, running: list[Sequence], waiting: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Return the running sequences that lose their places, and the waiting ones that are admitted first.

        The sequences with the longest turns lose theirs, to requests that are at least as urgent.
        """
        now = self._now()
        if not waiting or now < self._next_check:
            return [], []
        self._next_check = now + TURN_SECONDS / CHECKS_PER_TURN
        urgency = max(sequence.priority for sequence in waiting)
        late = [one for one in waiting if one.priority == urgency and now - one.turn.since >= TURN_SECONDS]
        late.sort(key=_since)
        ended = [one for one in running if one.priority <= urgency and now - one.turn.since >= TURN_SECONDS]
        ended = [one for one in ended if _pays_off(one)]
        ended.sort(key=_since)
        return ended[: len(late)], late


def _since(sequence: Sequence) -> float:
    return sequence.turn.since


def _pays_off(sequence: Sequence) -> bool:
    """Report whether ``sequence`` has generated enough in its turn to outweigh that all of it is computed again."""
    return (sequence.generated - sequence.turn.generated) * TOKENS_PER_GENERATED >= len(sequence.tokens)


def with_first(first: list[Sequence], order: list[Sequence]) -> list[Sequence]:
    """Return ``order`` with the sequences of ``first`` that are in it at its head, in their own order."""
    admissible = set(map(id, order))
    leading = set(map(id, first))
    return [*(one for one in first if id(one) in admissible), *(one for one in order if id(one) not in leading)]
