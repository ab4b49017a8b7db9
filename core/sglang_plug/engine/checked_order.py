"""A schedule policy whose answers are looked at: a sequence that it forgets would wait for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_plug.cache import Match
from sglang_plug.policy import SchedulePolicy, Waiting


class CheckedOrder:
    """Asks ``policy``, which ``whose`` names in errors."""

    def __init__(self, policy: SchedulePolicy, whose: str) -> None:
        self.policy, self.whose = policy, whose

    def order(self, waiting: Sequence[Waiting], match: Callable[[Waiting], Match]) -> Sequence[Waiting]:
        """As ``SchedulePolicy.order``. Raises ``RuntimeError`` if the answer is not what was given, in some order."""
        count = len(waiting)
        found = self.policy.order(waiting, match)
        if found is waiting and len(found) == count:  # as most do: nothing to look at
            return found
        given = set(map(id, waiting))
        if not count == len(found) == len(given) or set(map(id, found)) != given:
            raise RuntimeError(
                f"{self.whose}: order() must return the {count} sequences it was given, each once, in any order; "
                f"it returned {len(found)}, of which {len(given & set(map(id, found)))} are among them"
            )
        return found
