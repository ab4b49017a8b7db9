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
    """What each caller has been served, in weighted tokens divided by the caller's weight.

    A caller that becomes active starts at least at the lowest counter of the active callers, so that nobody saves up
    service while being idle. While none is active, it starts at least where the last active caller stopped.

    Args:
        settings: the prices of tokens.
    """

    def __init__(self, settings: FairSettings | None = None) -> None:
        self._prices = settings or FairSettings()
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._serials: dict[str, int] = {}
        self._last = 0.0
        self._activations = 0

    @property
    def active(self) -> int:
        """Number of callers with open requests."""
        return len(self._weights)

    @property
    def total_weight(self) -> float:
        """Sum of the weights of the active callers."""
        return sum(self._weights.values())

    def counter(self, caller: str) -> float:
        """Return the counter of a caller; 0 for one that is not known."""
        return self._counters.get(caller, 0.0)

    def weight(self, caller: str) -> float:
        """Return the weight of an active caller."""
        return self._weights[caller]

    def rank(self, caller: str) -> tuple[float, int]:
        """Return the sort key of an active caller: the lowest counter first, then the caller that was idle last."""
        return self._counters[caller], -self._serials[caller]

    def price(self, caller: str, computed: int, generated: int = 0) -> float:
        """Return what tokens add to the counter of an active caller."""
        used = self._prices.input_weight * computed + self._prices.output_weight * generated
        return used / self._weights[caller]

    def activate(self, caller: str, weight: float) -> None:
        """Add an active caller, and lift its counter."""
        floor = min((self._counters[other] for other in self._weights), default=self._last)
        self._counters[caller] = max(self._counters.get(caller, 0.0), floor)
        self._weights[caller] = weight
        self._activations += 1
        self._serials[caller] = self._activations

    def deactivate(self, caller: str) -> None:
        """Remove a caller from the active ones; its counter is kept."""
        self._last = self._counters[caller]
        del self._weights[caller], self._serials[caller]
        if len(self._counters) > len(self._weights) + REMEMBERED:
            self._forget()

    def charge(self, usage: Iterable[TokenUsage]) -> None:
        """Add the tokens of a step to the counters of active callers."""
        for one in usage:
            self._counters[one.caller] += self.price(one.caller, one.computed, one.generated)

    def _forget(self) -> None:
        """Forget half of the idle callers: those with the lowest counters, which would be lifted anyway."""
        idle = sorted((name for name in self._counters if name not in self._weights), key=self.counter)
        for name in idle[: len(idle) // 2]:
            del self._counters[name]


class FairShare:
    """Serve the caller with the lowest virtual token counter first; each caller's own requests by arrival.

    While only one caller has requests, the order is that of ``FirstCome``.

    Args:
        settings: the prices of tokens.
    """

    def __init__(self, settings: FairSettings | None = None) -> None:
        self.counters = VirtualCounters(settings)

    def activated(self, caller: str, weight: float) -> None:
        self.counters.activate(caller, weight)

    def deactivated(self, caller: str) -> None:
        self.counters.deactivate(caller)

    def charge(self, usage: Sequence[TokenUsage]) -> None:
        self.counters.charge(usage)

    def preempts(self) -> bool:
        return self.counters.active > 1

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        queue = sorted(waiting, key=_arrival)
        if self.counters.active < 2:
            return self.within_caller(queue, match, WINDOW)
        groups: dict[str, list[Waiting]] = {}
        for item in queue:
            groups.setdefault(item.caller, []).append(item)
        window = max(1, WINDOW // len(groups))
        groups = {caller: _begun_first(self.within_caller(group, match, window)) for caller, group in groups.items()}
        return self._interleaved(groups, queue)

    def within_caller(self, queue: list[Waiting], match: Lookup, window: int) -> list[Waiting]:
        """Return one caller's sequences in their order; ``queue`` is in the order of arrival.

        At most ``window`` sequences may be looked up in the prefix cache.
        """
        return queue

    def exchange(
        self, running: Sequence[Waiting], waiting: Sequence[Waiting], free: int
    ) -> tuple[Sequence[Waiting], Sequence[Waiting]]:
        """Let callers below their part of the places take places of those above theirs.

        The sequence that was admitted last gives up its place: it has the least to lose.
        """
        if free > 0:
            return [], []
        held = Counter(one.caller for one in running)
        queues: dict[str, list[Waiting]] = {}
        for item in waiting:
            if held[item.caller] + 1 <= self._part(item.caller, len(running)):
                queues.setdefault(item.caller, []).append(item)
        ended: list[Waiting] = []
        first: list[Waiting] = []
        for caller in sorted(queues, key=self.counters.rank):
            for item in sorted(queues[caller], key=_arrival):
                if held[caller] + 1 > self._part(caller, len(running)):
                    break
                victim = self._victim(running, held, ended)
                if victim is None:
                    return ended, first
                held[victim.caller] -= 1
                held[caller] += 1
                ended.append(victim)
                first.append(item)
        return ended, first

    def _part(self, caller: str, places: int) -> float:
        """Return the number of ``places`` that an active caller is entitled to."""
        return places * self.counters.weight(caller) / self.counters.total_weight

    def _victim(self, running: Sequence[Waiting], held: Counter[str], ended: list[Waiting]) -> Waiting | None:
        """Return the last sequence of the caller that has most beyond its part of the places; ``None``: nobody has."""
        excess = {caller: count - self._part(caller, len(running)) for caller, count in held.items() if count}
        most = max(excess, key=lambda caller: excess[caller])
        if excess[most] <= 0:
            return None
        gone = set(map(id, ended))
        return next(one for one in reversed(running) if one.caller == most and id(one) not in gone)

    def _interleaved(self, groups: dict[str, list[Waiting]], queue: list[Waiting]) -> list[Waiting]:
        """Return the heads of the queues, as if each had been charged to its caller, then the rest by arrival."""
        counters = self.counters
        heap = [(*counters.rank(caller), caller) for caller in groups]
        heapq.heapify(heap)
        positions = dict.fromkeys(groups, 0)
        ordered: list[Waiting] = []
        while heap and len(ordered) < WINDOW:
            counter, serial, caller = heap[0]
            item = groups[caller][positions[caller]]
            ordered.append(item)
            positions[caller] += 1
            if positions[caller] == len(groups[caller]):
                heapq.heappop(heap)
                continue
            counter += counters.price(caller, len(item.tokens) - item.computed)
            heapq.heapreplace(heap, (counter, serial, caller))
        if not heap:
            return ordered
        chosen = set(map(id, ordered))
        return ordered + [item for item in queue if id(item) not in chosen]


class FairShareLongestPrefix(FairShare):
    """Serve the caller with the lowest virtual token counter first; its own requests by their cached prefixes.

    While only one caller has requests, the order is that of ``LongestPrefix``.
    """

    def within_caller(self, queue: list[Waiting], match: Callable[[Waiting], Match], window: int) -> list[Waiting]:
        head = queue[:window]
        cached = [len(match(item).slots) for item in head]
        ranks = sorted(range(len(head)), key=lambda index: -cached[index])
        return [head[index] for index in ranks] + queue[window:]


def _arrival(item: Waiting) -> float:
    return item.arrived


def _begun_first(queue: list[Waiting]) -> list[Waiting]:
    """Return ``queue`` with the prompts that are being computed first."""
    return sorted(queue, key=lambda item: item.computed == 0)
