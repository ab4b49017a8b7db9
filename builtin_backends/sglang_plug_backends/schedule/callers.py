"""Fair sharing between callers with virtual token counters (Sheng et al., OSDI 2024)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sglang_plug import Match, TokenUsage, Waiting

from .policies import WINDOW, Lookup

REMEMBERED = 10_000
"""Number of callers without requests whose counters are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairSettings:
    """Prices of tokens; only their ratio matters."""

    input_weight: float = 1.0
    """Price of an input token that is computed."""
    output_weight: float = 2.0
    """Price of an output token."""

    def __post_init__(self) -> None:
        if not (0 <= self.input_weight < float("inf") and 0 < self.output_weight < float("inf")):
            raise ValueError("input_weight must be at least 0, and output_weight more than 0")


class VirtualCounters:
    """Counters of what each caller has been served: weighted tokens divided by the weight of the caller.

    A caller whose queue was empty joins the others at least at the lowest counter of those with a queue, so that nobody
    saves up service by being idle, or by keeping one slow request open. If no queue has anything, it joins at least at
    the counter of the caller whose queue was emptied last.

    Args:
        settings: the prices of tokens.
    """

    def __init__(self, settings: FairSettings | None = None) -> None:
        self._prices = settings or FairSettings()
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._joined: dict[str, int] = {}
        """Active callers, with a number that grows whenever one of them joins the queue."""
        self._queued: set[str] = set()
        self._last_queued = ""
        """The caller whose queue was emptied last; its counter is kept."""
        self._level = 0.0
        """Lowest counter of the callers whose prompts the last step with any computed. The counter of a caller that may
        not run more sequences is below, and nobody else starts there."""
        self._serial = 0
        self.total_weight = 0.0
        """Sum of the weights of the active callers."""

    @property
    def active(self) -> int:
        """Number of callers with open requests."""
        return len(self._weights)

    @property
    def known(self) -> int:
        """Number of callers whose counters are kept."""
        return len(self._counters)

    def counter(self, caller: str) -> float:
        """Return the counter of a caller; 0 for one that is not known."""
        return self._counters.get(caller, 0.0)

    def weight(self, caller: str) -> float:
        """Return the weight of an active caller."""
        return self._weights[caller]

    def rank(self, caller: str) -> tuple[float, int]:
        """Return the sort key of an active caller: the lowest counter first, then the caller that joined last."""
        return self._counters[caller], -self._joined[caller]

    def price(self, caller: str, computed: int, generated: int = 0) -> float:
        """Return what tokens add to the counter of an active caller."""
        used = self._prices.input_weight * computed + self._prices.output_weight * generated
        return used / self._weights[caller]

    def activate(self, caller: str, weight: float) -> None:
        """Add an active caller."""
        self._counters.setdefault(caller, 0.0)
        self._weights[caller], self._joined[caller] = weight, self._serial
        self.total_weight = sum(self._weights.values())

    def deactivate(self, caller: str) -> None:
        """Remove a caller from the active ones; its counter is kept."""
        del self._weights[caller], self._joined[caller]
        self.total_weight = sum(self._weights.values())
        if len(self._counters) > len(self._weights) + REMEMBERED:
            self._forget()

    def join_queue(self, caller: str) -> None:
        """Note that an active caller has a request in the queue, and had none: lift its counter."""
        floor = self.counter(self._last_queued)
        if self._queued:
            floor = max(self._level, min(self._counters[other] for other in self._queued))
        self._counters[caller] = max(self._counters[caller], floor)
        self._queued.add(caller)
        self._serial += 1
        self._joined[caller] = self._serial

    def leave_queue(self, caller: str) -> None:
        """Note that an active caller has no request in the queue any more."""
        self._queued.remove(caller)
        self._last_queued = caller

    def charge(self, usage: Iterable[TokenUsage]) -> None:
        """Add the tokens of a step to the counters of active callers."""
        usage = list(usage)
        if served := [self._counters[record.caller] for record in usage if record.computed]:
            self._level = min(served)
        for record in usage:
            self._counters[record.caller] += self.price(record.caller, record.computed, record.generated)

    def _forget(self) -> None:
        """Forget half of the idle callers: those with the lowest counters, which would be lifted anyway."""
        keep = {*self._weights, self._last_queued}
        idle = sorted((name for name in self._counters if name not in keep), key=self.counter)
        for name in idle[: len(idle) // 2]:
            del self._counters[name]


class FairShare:
    """Serve the caller with the lowest virtual token counter first; each caller's own requests by priority and arrival.

    While only one caller has requests, the order is that of ``Priority``: that of ``FirstCome`` if no request has one.

    Args:
        settings: the prices of tokens.
    """

    def __init__(self, settings: FairSettings | None = None) -> None:
        self.counters = VirtualCounters(settings)

    def activated(self, caller: str, weight: float) -> None:
        self.counters.activate(caller, weight)

    def deactivated(self, caller: str) -> None:
        self.counters.deactivate(caller)

    def joined_queue(self, caller: str) -> None:
        self.counters.join_queue(caller)

    def left_queue(self, caller: str) -> None:
        self.counters.leave_queue(caller)

    def charge(self, usage: Sequence[TokenUsage]) -> None:
        self.counters.charge(usage)

    def can_preempt(self) -> bool:
        return self.counters.active > 1

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        queue = sorted(waiting, key=_by_priority)
        if self.counters.active < 2 or not queue:
            return self.within_caller(queue, match, WINDOW)
        groups: dict[str, list[Waiting]] = {}
        for sequence in queue:
            groups.setdefault(sequence.caller, []).append(sequence)
        window = max(1, WINDOW // len(groups))
        groups = {caller: _begun_first(self.within_caller(group, match, window)) for caller, group in groups.items()}
        return self._interleaved(groups, queue)

    def within_caller(self, queue: list[Waiting], match: Lookup, window: int) -> list[Waiting]:
        """Return one caller's sequences in their order; ``queue`` is in the order of priority and arrival.

        At most ``window`` sequences may be looked up in the prefix cache.
        """
        return queue

    def preempt(
        self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int
    ) -> tuple[Sequence[Waiting], Sequence[Waiting]]:
        """Preempt sequences of callers above their fair share in favour of callers below theirs.

        Of the caller that is furthest above, the sequence that was admitted last is preempted: it loses the least.
        """
        if free_running_slots > 0 or not running:
            return [], []
        held = Counter(sequence.caller for sequence in running)
        queues: dict[str, list[Waiting]] = {}
        for sequence in waiting:
            if held[sequence.caller] + 1 <= self._fair_share(sequence.caller, len(running)):
                queues.setdefault(sequence.caller, []).append(sequence)
        ended: list[Waiting] = []
        first: list[Waiting] = []
        for caller in sorted(queues, key=self.counters.rank):
            for sequence in sorted(queues[caller], key=_by_priority):
                if held[caller] + 1 > self._fair_share(caller, len(running)):
                    break
                victim = self._victim(running, held, ended)
                if victim is None:
                    return ended, first
                held[victim.caller] -= 1
                held[caller] += 1
                ended.append(victim)
                first.append(sequence)
        return ended, first

    def _fair_share(self, caller: str, running: int) -> float:
        """Return how many of ``running`` sequences an active caller is entitled to, at least one."""
        return max(1.0, running * self.counters.weight(caller) / self.counters.total_weight)

    def _victim(self, running: Sequence[Waiting], held: Counter[str], ended: list[Waiting]) -> Waiting | None:
        """Return the last sequence of the caller that is furthest above its fair share; ``None``: no caller is."""
        excess = {caller: count - self._fair_share(caller, len(running)) for caller, count in held.items() if count}
        heaviest = max(excess, key=lambda caller: excess[caller])
        if excess[heaviest] <= 0:
            return None
        ended_ids = set(map(id, ended))
        return next(
            sequence for sequence in reversed(running) if sequence.caller == heaviest and id(sequence) not in ended_ids
        )

    def _interleaved(self, groups: dict[str, list[Waiting]], queue: list[Waiting]) -> list[Waiting]:
        """Return the heads of the queues, as if each had been charged to its caller, then the rest in order."""
        counters = self.counters
        heap = [(*counters.rank(caller), caller) for caller in groups]
        heapq.heapify(heap)
        positions = dict.fromkeys(groups, 0)
        ordered: list[Waiting] = []
        while heap and len(ordered) < WINDOW:
            counter, serial, caller = heap[0]
            sequence = groups[caller][positions[caller]]
            ordered.append(sequence)
            positions[caller] += 1
            if positions[caller] == len(groups[caller]):
                heapq.heappop(heap)
                continue
            counter += counters.price(caller, len(sequence.tokens) - sequence.computed)
            heapq.heapreplace(heap, (counter, serial, caller))
        if not heap:
            return ordered
        chosen = set(map(id, ordered))
        return ordered + [sequence for sequence in queue if id(sequence) not in chosen]


class FairShareLongestPrefix(FairShare):
    """Serve the caller with the lowest virtual token counter first; its own by priority and their cached prefixes.

    While only one caller has requests, and none has a priority, the order is that of ``LongestPrefix``.
    """

    def within_caller(self, queue: list[Waiting], match: Callable[[Waiting], Match], window: int) -> list[Waiting]:
        head = queue[:window]
        cached = [len(match(sequence).slots) for sequence in head]
        ranks = sorted(range(len(head)), key=lambda index: (-head[index].priority, -cached[index]))
        return [head[index] for index in ranks] + queue[window:]


def _by_priority(sequence: Waiting) -> tuple[int, float]:
    return -sequence.priority, sequence.arrived


def _begun_first(queue: list[Waiting]) -> list[Waiting]:
    """Return ``queue`` with the prompts that are being computed first."""
    return sorted(queue, key=lambda sequence: sequence.computed == 0)
