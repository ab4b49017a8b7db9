"""Keeps the number of different adapters in one step small."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

from sglang_plug.cache import Match
from sglang_plug.policy import SchedulePolicy, Waiting

from .sequence import Sequence

PATIENCE = 256
"""Steps for which a sequence may be overtaken, because its adapter has no place, by others that have one."""


class FewAdapters:
    """A schedule policy's order, without sequences whose adapter would be one too many.

    A sequence that was overtaken for long lets no other with an adapter pass, so that a place becomes free in the end.

    Args:
        policy: gives the order.
        running: the sequences being computed.
        most: different adapters in one step.
    """

    def __init__(self, policy: SchedulePolicy, running: Ordered[Sequence], most: int) -> None:
        self._policy, self._running, self._most = policy, running, most

    def order(self, waiting: Ordered[Waiting], match: Callable[[Waiting], Match]) -> list[Waiting]:
        """Those that may be admitted, first to admit first."""
        active = {one.adapter for one in self._running if one.adapter is not None}
        admitted: list[Waiting] = []
        closed = False
        for one in self._policy.order(waiting, match):
            assert isinstance(one, Sequence)
            if one.adapter is not None and (closed or (one.adapter not in active and len(active) >= self._most)):
                one.overtaken += 1
                closed = closed or one.overtaken > PATIENCE
                continue
            if one.adapter is not None:
                active.add(one.adapter)
            admitted.append(one)
        return admitted
