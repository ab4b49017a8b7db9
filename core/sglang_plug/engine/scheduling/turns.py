"""Exchanges of places: running sequences that give theirs to waiting ones, by the policy and by time slices.

Without time slices, requests that arrive when ``max_running`` sequences run wait until one of these ends, for minutes
if their outputs are long; and clients that read nothing would let everybody wait, because a client's own system accepts
hundreds of kilobytes before the server can notice that nobody reads them. Shorter requests are not affected.

A preemptive policy is asked first, without waiting for a turn to end. Time slices then apply within each caller, and to
callers that hold no place at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_plug.contracts.serving.scheduling import PreemptivePolicy

if TYPE_CHECKING:
    from .sequence import Sequence

TURN_SECONDS = 5.0
"""Seconds after which a running sequence may lose its place, to a request that has waited as long."""
CHECKS_PER_TURN = 5
RETRY_SECONDS, RETRY_STEPS = 0.05, 3
"""A preemptive policy is asked to make room once a waiting sequence has found too few KV slots for so long, and in so
many steps. Often a running sequence ends meanwhile, and nothing has to be computed again."""
TOKENS_PER_GENERATED = 8
"""A sequence keeps its place until it has generated one token per so many of its tokens. So the sequences generate more
than they compute again, even if the prefix cache forgets all of them."""

Exchange = tuple[list["Sequence"], list["Sequence"]]
"""The running sequences that lose their places, and the waiting ones that are admitted first."""


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
        policy: the schedule policy, if it is preemptive.
        name: the policy as errors name it.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        policy: PreemptivePolicy | None = None,
        name: str = "the schedule policy",
    ) -> None:
        self._now, self._policy, self._name = now, policy, name
        self._next_check = self._next_retry = 0.0
        self._changed, self._failures = False, 0
        self._stuck: Sequence | None = None
        """The waiting sequence that found too few KV slots in the last steps."""

    @property
    def preempts(self) -> bool:
        """True if waiting sequences may go before running ones now."""
        return self._policy is not None and self._policy.preempts()

    @property
    def is_due(self) -> bool:
        """Report whether it is time to look at the queue again."""
        now = self._now()
        if now >= self._next_check:
            return True
        return (self._changed or self._is_stuck(now)) and self.preempts

    def begin(self, sequence: Sequence) -> None:
        """Note that ``sequence`` is queued, or admitted."""
        sequence.service.turn = Turn(self._now(), sequence.generated)
        self._changed = True
        if sequence is self._stuck:
            self._stuck = None

    def found_no_room(self, sequence: Sequence) -> None:
        """Note that a waiting sequence found too few KV slots."""
        if sequence is not self._stuck:
            self._stuck, self._failures, self._next_retry = sequence, 0, self._now() + RETRY_SECONDS
        self._failures += 1

    def exchange(self, running: list[Sequence], waiting: list[Sequence], free: int = 0) -> Exchange:
        """Return the running sequences that lose their places, and the waiting ones that are admitted first.

        ``free`` is the number of free places.
        """
        now = self._now()
        if not waiting or not self.is_due:
            return [], []
        preempts = self.preempts
        if preempts:
            is_stuck = self._is_stuck(now)
            ended, first = self._by_policy(running, waiting, 0 if is_stuck else free)
            self._stuck = None if is_stuck else self._stuck
            self._changed = False
            if ended or now < self._next_check:
                return ended, first
        self._next_check = now + TURN_SECONDS / CHECKS_PER_TURN
        return _within_callers(running, waiting, now) if preempts else _by_time(running, waiting, now)

    def _is_stuck(self, now: float) -> bool:
        return self._stuck is not None and self._failures >= RETRY_STEPS and now >= self._next_retry

    def _by_policy(self, running: list[Sequence], waiting: list[Sequence], free: int) -> Exchange:
        """Ask the policy. Raises ``RuntimeError`` if it names sequences that it was not given."""
        assert self._policy is not None
        ended, first = self._policy.exchange(running, waiting, free)
        if not ended:
            return [], []
        known, queued = (
            {id(sequence): sequence for sequence in running},
            {id(sequence): sequence for sequence in waiting},
        )
        leaving, leading = dict.fromkeys(map(id, ended)), dict.fromkeys(map(id, first))
        if not (leaving.keys() <= known.keys() and leading.keys() <= queued.keys()):
            raise RuntimeError(
                f"{self._name}: exchange() must return some of the running sequences and some of the waiting ones that "
                "it was given, in this order"
            )
        return [known[number] for number in leaving], [queued[number] for number in leading]


def _by_time(running: list[Sequence], waiting: list[Sequence], now: float) -> Exchange:
    """Exchange the sequences with the longest turns for requests that are at least as urgent and have waited as long.

    Returns no request to admit first if no sequence loses its place.
    """
    urgency = max(sequence.priority for sequence in waiting)
    late = [other for other in waiting if other.priority == urgency and now - other.service.turn.since >= TURN_SECONDS]
    late.sort(key=_since)
    ended = [other for other in running if other.priority <= urgency and _has_ended(other, now)]
    ended.sort(key=_since)
    return ended[: len(late)], late


def _within_callers(running: list[Sequence], waiting: list[Sequence], now: float) -> Exchange:
    """Exchange places within each caller, and give places to callers without any."""
    held = Counter(sequence.caller for sequence in running)
    late = [sequence for sequence in waiting if now - sequence.service.turn.since >= TURN_SECONDS]
    late.sort(key=lambda sequence: (-sequence.priority, sequence.service.turn.since))
    candidates = [sequence for sequence in running if _has_ended(sequence, now)]
    ended: list[Sequence] = []
    first: list[Sequence] = []
    for sequence in late:
        if not candidates:
            break
        anyone = not held[sequence.caller]
        if not anyone and sequence.caller not in {other.caller for other in candidates}:
            continue
        allowed = [
            other
            for other in candidates
            if anyone or (other.caller == sequence.caller and other.priority <= sequence.priority)
        ]
        if not allowed:
            continue
        victim = min(allowed, key=lambda other: (-held[other.caller], other.service.turn.since))
        candidates.remove(victim)
        held[victim.caller] -= 1
        held[sequence.caller] += 1
        ended.append(victim)
        first.append(sequence)
    return ended, first


def _has_ended(sequence: Sequence, now: float) -> bool:
    """Report whether the turn of a running sequence is over."""
    return now - sequence.service.turn.since >= TURN_SECONDS and _pays_off(sequence)


def _since(sequence: Sequence) -> float:
    return sequence.service.turn.since


def _pays_off(sequence: Sequence) -> bool:
    """Report whether ``sequence`` has generated enough in its turn to outweigh that all of it is computed again."""
    return (sequence.generated - sequence.service.turn.generated) * TOKENS_PER_GENERATED >= len(sequence.tokens)


def with_first(first: list[Sequence], order: list[Sequence]) -> list[Sequence]:
    """Return ``order`` with the sequences of ``first`` that are in it at its head, in their own order."""
    admissible = set(map(id, order))
    leading = set(map(id, first))
    return [
        *(sequence for sequence in first if id(sequence) in admissible),
        *(sequence for sequence in order if id(sequence) not in leading),
    ]
