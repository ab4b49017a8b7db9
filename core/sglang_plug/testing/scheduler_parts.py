"""A scheduler for tests, and parts of it: other step extensions, the simplest policies, and no prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.request_phases import AdmissionPhase
from sglang_plug.contracts.extension.views import SequenceView
from sglang_plug.contracts.request import RequestError
from sglang_plug.contracts.serving.cache import Match, PrefixCache
from sglang_plug.contracts.serving.scheduling import Waiting
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.memory.kv_slots import KVAllocator, SlotPool
from sglang_plug.engine.scheduling.admission_rules import GrowthReserve
from sglang_plug.engine.scheduling.caller_accounting import CallerAccounting
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.scheduling.scheduler import Scheduler

NO_EXTENSIONS = ExtensionPoints()
REFUSED = "refused "
"""Start of the ids of requests that another extension refuses."""


OTHERS = "key of another extension"
"""The key under which ``Counter`` keeps something of each sequence."""


class Counter(StepExtension, AdmissionPhase):
    """Counts the calls of ``finished``, and keeps something of each sequence."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def admit(self, sequence: SequenceView) -> None:
        self._counts[sequence.request.id] = 0
        sequence.extras[OTHERS] = sequence.request.id

    def finished(self, sequence: SequenceView) -> None:
        self._counts[sequence.request.id] += 1
        assert sequence.extras.get(OTHERS) == sequence.request.id, (
            f"request {sequence.request.id}: extras of another extension were changed; keep to a key of your own"
        )


class Refuses(StepExtension, AdmissionPhase):
    """Refuses requests whose ids say so."""

    def admit(self, sequence: SequenceView) -> None:
        if sequence.request.id.startswith(REFUSED):
            raise RequestError("refused by the test")


class FirstCome:
    """A schedule policy that keeps the order."""

    def order(self, waiting: Sequence[Waiting], match: Any) -> Sequence[Waiting]:
        return waiting


class Newest:
    """An eviction policy that prefers nothing."""

    def eviction_priority(self, node: Any) -> float:
        return 0.0


class NoCache(PrefixCache):
    """A prefix cache that keeps nothing."""

    @property
    def size(self) -> int:
        return 0

    @property
    def evictable(self) -> int:
        return 0

    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return Match((), None)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return Match((), None)

    def lock(self, match: Match) -> None: ...

    def unlock(self, match: Match) -> None: ...

    def evict(self, count: int) -> list[int]:
        return []

    def reset(self) -> list[int]:
        return []

    def check(self) -> None: ...


def build_scheduler(
    pool: SlotPool,
    cache: PrefixCache,
    policy: CheckedPolicy,
    *,
    chunk_size: int,
    max_running: int,
    never_chunks_prompts: bool = False,
    extensions: ExtensionPoints = NO_EXTENSIONS,
    preemption: Preemption | None = None,
    reserve: GrowthReserve | None = None,
    accounting: CallerAccounting | None = None,
) -> Scheduler:
    """Build a scheduler without the parts that a test does not name; see ``Scheduler``."""
    return Scheduler(
        KVAllocator(pool, cache, extensions.cache, "the prefix cache"),
        policy,
        chunk_size=chunk_size,
        max_running=max_running,
        never_chunks_prompts=never_chunks_prompts,
        requests=extensions.requests,
        planning=extensions.planning,
        preemption=preemption or Preemption(),
        reserve=reserve or GrowthReserve(),
        accounting=accounting or CallerAccounting(),
    )
