"""A limit of the number of different adapters in one step."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from sglang_plug.engine.scheduling.sequence import Sequence

MOST_OVERTAKEN = 256
"""Steps for which sequences with a place may overtake one whose adapter has no place."""


class AdapterLimit:
    """Leaves out waiting sequences whose adapter would be one too many.

    A sequence that was overtaken for long blocks all others with adapters, so that a place becomes free in the end.

    Args:
        most: largest number of different adapters in one step.
    """

    def __init__(self, most: int) -> None:
        self._most = most

    def order(self, waiting: list[Sequence], running: Ordered[Sequence]) -> list[Sequence]:
        """Return the sequences that may be admitted, the first to admit first."""
        active = {sequence.adapter for sequence in running if sequence.adapter is not None}
        admitted: list[Sequence] = []
        closed = False
        for sequence in waiting:
            adapter = sequence.adapter
            if adapter is not None and (closed or (adapter not in active and len(active) >= self._most)):
                sequence.overtaken += 1
                closed = closed or sequence.overtaken > MOST_OVERTAKEN
                continue
            if adapter is not None:
                active.add(adapter)
            admitted.append(sequence)
        return admitted
