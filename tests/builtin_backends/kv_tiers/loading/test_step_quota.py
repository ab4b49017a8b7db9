"""During a step that sequences wait for, a limited number of bytes is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sglang_plug_backends.kv_tiers.loading.step_quota import IDLE_SECONDS, StepQuota

TIMEOUT = 60.0


@dataclass
class Taker:
    """A thread that takes parts of a quota one after the other."""

    quota: StepQuota
    sizes: list[int]
    taken: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self) -> Taker:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        for size in self.sizes:
            self.quota.take(size)
            with self.changed:
                self.taken.append(size)
                self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) >= count, TIMEOUT)


def stopped_clock() -> Callable[[], float]:
    return lambda: 100.0


def test_without_steps_nothing_is_waited_for() -> None:
    quota = StepQuota(10)
    for _ in range(5):
        quota.take(8)


def test_nothing_is_waited_for_after_a_step_without_sequences_that_decode() -> None:
    quota = StepQuota(10, clock=stopped_clock())
    quota.step_done(decoding=False)
    for _ in range(5):
        quota.take(8)


def test_each_step_has_its_quota() -> None:
    quota = StepQuota(10, clock=stopped_clock())
    quota.step_done(decoding=True)
    taker = Taker(quota, [6, 4, 3, 7, 1]).start()
    taker.wait_for(2)
    taker.thread.join(0.2)
    assert taker.taken == [6, 4]
    quota.step_done(decoding=True)
    taker.wait_for(4)
    taker.thread.join(0.2)
    assert taker.taken == [6, 4, 3, 7]
    quota.step_done(decoding=True)
    taker.wait_for(5)


def test_a_part_that_exceeds_the_quota_is_taken_in_a_step_of_its_own() -> None:
    quota = StepQuota(10, clock=stopped_clock())
    quota.step_done(decoding=True)
    taker = Taker(quota, [25, 25]).start()
    taker.wait_for(1)
    taker.thread.join(0.2)
    assert taker.taken == [25]
    quota.step_done(decoding=True)
    taker.wait_for(2)


def test_when_no_step_follows_nothing_is_waited_for() -> None:
    now = [100.0]
    quota = StepQuota(10, clock=lambda: now[0])
    quota.step_done(decoding=True)
    quota.take(10)
    now[0] += IDLE_SECONDS
    quota.take(10)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_share_the_quota(threads: int) -> None:
    quota = StepQuota(10, clock=stopped_clock())
    quota.step_done(decoding=True)
    takers = [Taker(quota, [5] * 3).start() for _ in range(threads)]
    for step in range(1, 3 * threads + 1):
        for taker in takers:
            taker.thread.join(0.05)
        assert sum(len(taker.taken) for taker in takers) <= 2 * step
        quota.step_done(decoding=True)
    for taker in takers:
        taker.wait_for(3)
