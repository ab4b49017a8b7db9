"""The number of bytes loaded during a step is limited while other sequences wait for the step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sglang_plug_backends.kv_tiers.loading.step_quota import IDLE_SECONDS, StepQuota

TIMEOUT = 60.0


class WatchedCondition(threading.Condition):
    """A condition that knows how many threads wait for it."""

    def __init__(self) -> None:
        lock = threading.RLock()
        super().__init__(lock)
        self.changed = threading.Condition(lock)
        """Notified when a thread begins to wait, and when one has taken a part."""
        self.waiting = self._notified = 0

    def wait(self, timeout: float | None = None) -> bool:
        notified = self._notified
        self.waiting += 1
        self.changed.notify_all()
        try:
            return super().wait(timeout)
        finally:
            self.waiting -= notified == self._notified

    def notify_all(self) -> None:
        self.waiting = 0
        self._notified += 1
        super().notify_all()


class NobodyWaits(threading.Condition):
    """A condition that nobody may wait for."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError(f"waits for at most {timeout} s")


@dataclass
class Taker:
    """A thread that takes parts of a quota one after the other."""

    quota: StepQuota
    condition: WatchedCondition
    sizes: list[int]
    taken: list[int] = field(default_factory=list)

    def start(self) -> Taker:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        for size in self.sizes:
            self.quota.take(size)
            with self.condition.changed:
                self.taken.append(size)
                self.condition.changed.notify_all()

    @property
    def is_done(self) -> bool:
        return self.taken == self.sizes


def until_all_wait_or_are_done(condition: WatchedCondition, *takers: Taker) -> None:
    def is_so() -> bool:
        return condition.waiting + sum(taker.is_done for taker in takers) == len(takers)

    with condition.changed:
        assert condition.changed.wait_for(is_so, TIMEOUT)


def stopped_clock() -> Callable[[], float]:
    return lambda: 100.0


def test_before_the_first_step_nothing_is_waited_for() -> None:
    now = [-1.0]  # at this time, a step that ended at 0 would be waited for
    quota = StepQuota(10, clock=lambda: now[0], changed=NobodyWaits())
    for _ in range(5):
        quota.take(8)


def test_nothing_is_waited_for_after_a_step_without_sequences_that_decode() -> None:
    quota = StepQuota(10, clock=stopped_clock(), changed=NobodyWaits())
    quota.step_done(decoding=False)
    for _ in range(5):
        quota.take(8)


def test_each_step_has_its_quota() -> None:
    condition = WatchedCondition()
    quota = StepQuota(10, clock=stopped_clock(), changed=condition)
    quota.step_done(decoding=True)
    taker = Taker(quota, condition, [6, 4, 3, 7, 1]).start()
    for taken in ([6, 4], [6, 4, 3, 7], [6, 4, 3, 7, 1]):
        until_all_wait_or_are_done(condition, taker)
        assert taker.taken == taken
        quota.step_done(decoding=True)


def test_a_part_that_exceeds_the_quota_is_taken_in_a_step_of_its_own() -> None:
    condition = WatchedCondition()
    quota = StepQuota(10, clock=stopped_clock(), changed=condition)
    quota.step_done(decoding=True)
    taker = Taker(quota, condition, [25, 25]).start()
    until_all_wait_or_are_done(condition, taker)
    assert taker.taken == [25]
    quota.step_done(decoding=True)
    until_all_wait_or_are_done(condition, taker)
    assert taker.taken == [25, 25]


def test_the_next_step_is_waited_for_until_the_engine_counts_as_idle() -> None:
    now = [100.0]

    class Passing(threading.Condition):
        """A condition whose waits always time out, and advance only the simulated time."""

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None and now[0] < 100.0 + IDLE_SECONDS
            now[0] += timeout
            return False

    quota = StepQuota(10, clock=lambda: now[0], changed=Passing())
    quota.step_done(decoding=True)
    quota.take(10)
    now[0] += IDLE_SECONDS / 4
    quota.take(10)
    assert now == [100.0 + IDLE_SECONDS]


def test_when_no_step_follows_nothing_is_waited_for() -> None:
    now = [100.0]
    quota = StepQuota(10, clock=lambda: now[0], changed=NobodyWaits())
    quota.step_done(decoding=True)
    quota.take(10)
    now[0] += IDLE_SECONDS
    quota.take(10)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_share_the_quota(threads: int) -> None:
    condition = WatchedCondition()
    quota = StepQuota(10, clock=stopped_clock(), changed=condition)
    quota.step_done(decoding=True)
    takers = [Taker(quota, condition, [5] * 3).start() for _ in range(threads)]
    for total in range(2, 3 * threads + 1, 2):
        until_all_wait_or_are_done(condition, *takers)
        assert sum(len(taker.taken) for taker in takers) == total
        quota.step_done(decoding=True)
    assert all(taker.is_done for taker in takers)
