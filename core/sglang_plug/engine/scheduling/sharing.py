"""The engine's side of schedule policies that share it between callers: accounts, and the order of running prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered

from sglang_plug.contracts.serving.cache import Match
from sglang_plug.contracts.serving.scheduling import AccountingPolicy, PreemptivePolicy, TokenUsage

from .checked_policy import CheckedPolicy
from .scheduled_chunk import ScheduledChunk
from .sequence import Sequence

DEFAULT_WEIGHT = 1.0
OVERTAKEN_PART = 4
"""A step in which waiting sequences overtake running prompts is filled up to one part in so many of its budget, so
that it is short for those that overtake."""

StepUsage = list[tuple[Sequence, int, int]]
"""The sequences of a step, the input tokens that it computes for each, and their lengths before it."""


class Sharing:
    """Tells a policy what callers use, and which running prompts it orders. Does nothing for other policies.

    Args:
        accounting: the policy, if it keeps accounts of callers.
        preemptive: the policy, if it orders running prompts.
        weights: id of a caller -> its weight, for callers whose weight is not 1.
    """

    def __init__(
        self,
        accounting: AccountingPolicy | None = None,
        preemptive: PreemptivePolicy | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._accounting, self._preemptive, self._weights = accounting, preemptive, dict(weights or {})
        self._open = Counter[str]()
        self._in_step = False
        self._ended: list[Sequence] = []
        """Sequences that ended with the step whose results are being applied."""

    def queued(self, sequence: Sequence) -> None:
        """Note a new request."""
        if self._accounting is None:
            return
        caller = sequence.caller
        self._open[caller] += 1
        if self._open[caller] == 1:
            self._accounting.activated(caller, self._weights.get(caller, DEFAULT_WEIGHT))

    def ended(self, sequence: Sequence) -> None:
        """Note the end of a request, whatever its reason."""
        if self._accounting is None:
            return
        if self._in_step:  # the step is charged before its callers are deactivated
            self._ended.append(sequence)
            return
        caller = sequence.caller
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]
            self._accounting.deactivated(caller)

    def split(self, running: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Return the running sequences that continue first, and the prompts that the policy orders with the queue."""
        if self._preemptive is None or not self._preemptive.preempts():
            return list(running), []
        prompts = [one for one in running if _is_prefilling(one)]
        return [one for one in running if one not in prompts] if prompts else list(running), prompts

    def usage(self, chunks: list[ScheduledChunk]) -> StepUsage:
        """Return what a step computes for its sequences; call it before the results are applied."""
        begun: StepUsage = []
        if self._accounting is None:
            return begun
        self._in_step = True
        for chunk in chunks:
            sequence = chunk.sequence
            if chunk.dropped:
                continue
            end, known = sequence.computed + chunk.count, max(sequence.computed, sequence.charged)
            if end > known:
                sequence.charged = end
            begun.append((sequence, max(0, end - known), len(sequence.tokens)))
        return begun

    def charge(self, begun: StepUsage) -> None:
        """Tell the policy what a step computed and generated; call it once its results are applied."""
        if self._accounting is None:
            return
        usage: dict[str, list[int]] = {}
        for sequence, computed, before in begun:
            length = len(sequence.tokens)
            if length > before:
                sequence.charged = length
            total = usage.setdefault(sequence.request.caller, [0, 0])
            total[0] += computed
            total[1] += length - before
        charges = [TokenUsage(caller, *counts) for caller, counts in usage.items() if any(counts)]
        if charges:
            self._accounting.charge(charges)
        self._in_step = False
        if self._ended:
            ended, self._ended = self._ended, []
            for sequence in ended:
                self.ended(sequence)


class CallerLimit:
    """Leaves out waiting sequences of callers that have as many running ones as each may have.

    Args:
        most: largest number of running sequences of one caller.
    """

    def __init__(self, most: int) -> None:
        self._most = most

    def order(self, waiting: list[Sequence], running: Ordered[Sequence]) -> list[Sequence]:
        """Return the sequences that may be admitted, the first to admit first."""
        held = Counter(one.caller for one in running)
        present = set(map(id, running))
        admitted: list[Sequence] = []
        for one in waiting:
            if id(one) not in present:
                if held[one.caller] >= self._most:
                    continue
                held[one.caller] += 1
            admitted.append(one)
        return admitted


def _is_prefilling(sequence: Sequence) -> bool:
    """Report whether a running sequence has more to compute than a decode step, and all the slots for it."""
    missing = len(sequence.tokens) - sequence.computed
    return missing > max(1, sequence.last_step_len) and len(sequence.slots) >= len(sequence.tokens)


Filter = Callable[[list[Sequence], Ordered[Sequence]], list[Sequence]]


def ordered(
    policy: CheckedPolicy,
    match: Callable[[Sequence], Match],
    waiting: list[Sequence],
    prompts: list[Sequence],
    running: list[Sequence],
    filters: Ordered[Filter],
) -> list[Sequence]:
    """Return the waiting sequences that may be admitted and the running ``prompts``, in the order of a step.

    Args:
        policy: orders them.
        match: looks a sequence up in the prefix cache.
        waiting: the queue.
        prompts: running sequences that the policy orders together with the queue.
        running: all running sequences.
        filters: the extensions' changes to the order; they cannot leave out what is running.
    """
    order = policy.order([*waiting, *prompts] if prompts else waiting, match)
    for change in filters:
        order = change(order, running)
    if prompts and filters:
        present = set(map(id, order))
        order = [*order, *(one for one in prompts if id(one) not in present)]
    return order


def rest_of_budget(budget: int, begun: int, chunk_size: int) -> int:
    """Return how much of ``budget`` is left for overtaken prompts, once others got ``begun`` tokens of the step."""
    return min(budget, max(0, chunk_size // OVERTAKEN_PART - begun))
