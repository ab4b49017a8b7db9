"""Rules of admission: the limits of step extensions, room to grow for running sequences, and shared prefixes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from sglang_plug.contracts.serving.cache import Match
from sglang_plug.engine.extensions.step_points import PlanningPoints
from sglang_plug.engine.sequences.sequence import Sequence

MIN_SHARED_TOKENS = 32
"""A waiting sequence waits for the prefix of one being computed if both continue with this many equal tokens."""


@dataclass(slots=True)
class GrowthReserve:
    """Fraction of the remaining output of running sequences that admission keeps free.

    Most outputs end before their limit, so the fraction falls with each step; a retraction shows that it was too small.
    """

    fraction: float = 0.5
    minimum: float = 0.1
    decay: float = 0.002
    """Decrease with each step."""
    increase: float = 0.2
    """Increase with each retraction."""

    def step_planned(self) -> None:
        """Lower the fraction, as a step was planned."""
        self.fraction = max(self.minimum, self.fraction - self.decay)

    def retracted(self) -> None:
        """Raise the fraction, as a sequence was retracted."""
        self.fraction = min(1.0, self.fraction + self.increase)

    def tokens(self, growth: int) -> int:
        """Return how many slots to keep free for ``growth`` tokens that may still be generated."""
        return int(growth * self.fraction)


def shared_prefix_key(sequence: Sequence, match: Match | None) -> Hashable:
    """Return a key of the tokens that ``sequence`` computes next, if others may share them; else ``None``."""
    start = len(match.slots) if match is not None else 0
    if match is None or match.node is None or sequence.reusable - start < MIN_SHARED_TOKENS:
        return None
    return match.node, tuple(sequence.keys(start, start + MIN_SHARED_TOKENS))


def prefixes_being_computed(running: Iterable[Sequence]) -> set[Hashable]:
    """Return the keys of the prefixes that sequences in ``running`` compute."""
    prefilling = (sequence for sequence in running if sequence.computes_prompt)
    return {key for sequence in prefilling if (key := shared_prefix_key(sequence, sequence.match)) is not None}


def apply_order(
    extensions: PlanningPoints, order: list[Sequence], running: list[Sequence], keep: Ordered[Sequence] = ()
) -> list[Sequence]:
    """Return the sequences of ``order`` that step extensions let run together with ``running`` ones, in their order.

    ``keep`` are running sequences that are in ``order``, and are never left out. Raises ``RuntimeError`` if an
    extension returns other sequences than it was given.
    """
    for change in extensions.order:
        answer = change(order, running)
        known, ids = set(map(id, order)), set(map(id, answer))
        if len(ids) != len(answer) or not ids <= known:
            raise RuntimeError(
                f"{extensions.names.of(change)}: order() must return a subset of the {len(order)} given sequences "
                f"without repetition; it returned {len(answer)} sequences, {len(ids & known)} of them given"
            )
        order = answer
    if keep and extensions.order:
        ordered_ids = set(map(id, order))
        order = [*order, *(sequence for sequence in keep if id(sequence) not in ordered_ids)]
    return order
