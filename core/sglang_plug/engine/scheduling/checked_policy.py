"""A schedule policy whose answers are checked: a sequence that it leaves out would wait forever."""

from __future__ import annotations

from collections.abc import Callable

from sglang_plug.contracts.serving.cache import Match
from sglang_plug.contracts.serving.scheduling import SchedulePolicy, Waiting
from sglang_plug.engine.sequences.sequence import Sequence


class CheckedPolicy:
    """Asks a schedule policy, and returns the engine's own sequences in its order.

    Args:
        policy: a component.
        name: the component as errors name it.
    """

    def __init__(self, policy: SchedulePolicy, name: str) -> None:
        self._policy = policy
        self._name = name

    def order(self, waiting: list[Sequence], match: Callable[[Sequence], Match]) -> list[Sequence]:
        """Return ``waiting``, the first to admit first; ``match`` looks a sequence up in the prefix cache.

        Raises ``RuntimeError`` if the policy does not return each sequence once.
        """
        known = {id(sequence): sequence for sequence in waiting}

        def match_known(sequence: Waiting) -> Match:
            return match(known[id(sequence)])

        count = len(waiting)
        answer = self._policy.order(waiting, match_known)
        if answer is waiting and len(answer) == count:  # nothing to check
            return waiting
        ids = [id(sequence) for sequence in answer]
        if len(ids) != count or set(ids) != known.keys():
            raise RuntimeError(
                f"{self._name}: order() must return the {count} sequences it was given, each once, in any order; "
                f"it returned {len(ids)}, of which {len(known.keys() & set(ids))} are among them"
            )
        return [known[id] for id in ids]
