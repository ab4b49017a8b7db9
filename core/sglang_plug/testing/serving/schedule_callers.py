"""Conformance test of the optional methods of schedule policies: accounts of callers, and preemption."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sglang_plug.contracts.serving.cache import Match
from sglang_plug.contracts.serving.scheduling import AccountingPolicy, PreemptivePolicy, TokenUsage, Waiting
from sglang_plug.testing.memory import traced_memory

from .queued import Queued

CALLERS = ("alice", "bob", "carol", "")
WEIGHTS = (0.001, 1.0, 2.0, 1000.0)
MAX_RUNNING = 4
STEPS = 150
PASSING = 12_000
"""Number of callers that come once; a policy may remember as many."""
MAX_BYTES = 60
"""Memory that a policy may take for each further caller that has left, on average."""


def check_accounting(policy: Any) -> None:
    """Check a policy with methods of ``AccountingPolicy``; one without any passes."""
    if not _has_methods(policy, AccountingPolicy):
        return
    _Server(policy).run()
    with traced_memory() as allocated:
        _visit(policy, range(PASSING))
        before = allocated()
        _visit(policy, range(PASSING, 2 * PASSING))
        after = allocated()
    assert after - before < PASSING * MAX_BYTES, (
        f"{PASSING} further callers that have left take {after - before} bytes: forget them in deactivated()"
    )


def check_preemption(policy: Any) -> None:
    """Check a policy with methods of ``PreemptivePolicy``; one without any passes."""
    if not _has_methods(policy, PreemptivePolicy):
        return
    accounts = _has_methods(policy, AccountingPolicy)
    if not accounts:
        _Server(policy).run()
    queued = Queued((1, 2), 0, 5.0)
    for waiting, free_running_slots in (list[Queued](), 0), (list[Queued](), MAX_RUNNING), ([queued], MAX_RUNNING):
        if accounts:
            _open(policy, waiting)
        _preempted(policy, [], waiting, free_running_slots, f"{len(waiting)} waiting sequences and nothing that runs")
        if accounts:
            _close(policy, waiting)


def _has_methods(policy: Any, protocol: type) -> bool:
    """Report whether a policy implements a protocol. Raises ``AssertionError`` if it does so only in part."""
    names = [name for name in vars(protocol) if not name.startswith("_")]
    present = [name for name in names if callable(getattr(policy, name, None))]
    if present:
        missing = ", ".join(name for name in names if name not in present)
        assert not missing, (
            f"{type(policy).__name__} has {present[0]}() of {protocol.__name__}, and so must have {missing}"
        )
    return bool(present)


def _call(policy: Any, name: str, *arguments: Any) -> Any:
    try:
        return getattr(policy, name)(*arguments)
    except Exception as error:
        raise AssertionError(f"{name}() raised {type(error).__name__}: {error}") from error


def _visit(policy: Any, numbers: range) -> None:
    """Let callers come with one request each, one after the other."""
    for number in numbers:
        caller = f"caller {number}"
        _call(policy, "activated", caller, 1.0)
        _call(policy, "joined_queue", caller)
        _call(policy, "left_queue", caller)
        _call(policy, "charge", [TokenUsage(caller=caller, computed=5, generated=1)])
        _call(policy, "deactivated", caller)


def _open(policy: Any, waiting: Sequence[Queued]) -> None:
    for caller in {sequence.caller for sequence in waiting}:
        _call(policy, "activated", caller, 1.0)
        _call(policy, "joined_queue", caller)


def _close(policy: Any, waiting: Sequence[Queued]) -> None:
    for caller in {sequence.caller for sequence in waiting}:
        _call(policy, "left_queue", caller)
        _call(policy, "deactivated", caller)


class _Server:
    """Requests of several callers that arrive, are admitted, preempted, aborted and end."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.accounts = callable(getattr(policy, "charge", None))
        self.preemptive = callable(getattr(policy, "can_preempt", None))
        self.random = random.Random(9)
        self.waiting: list[Queued] = []
        self.running: list[Queued] = []
        self.new: set[int] = set()
        """Ids of waiting sequences that were never admitted."""
        self.arrived = 0

    def run(self) -> None:
        """Serve for some steps, and then until nothing is left, twice."""
        for _ in range(2):
            for step in range(STEPS):
                self._arrive(self.random.randint(0, 3))
                self._step(f"step {step + 1} of several callers")
            while self.waiting or self.running:
                self._step("callers that end")

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            self.arrived += 1
            caller = self.random.choice(CALLERS)
            deadline = self.random.choice((None, 1.7e9 + self.arrived + self.random.randint(-5, 50)))
            tokens = tuple(range(self.random.randint(1, 60)))
            queued = Queued(tokens, self.random.choice((0, 0, 5)), 1.7e9 + self.arrived, caller, deadline)
            if caller not in self._open_callers():
                self._notify("activated", caller, self.random.choice(WEIGHTS))
            if not self._has_new(caller):
                self._notify("joined_queue", caller)
            self.waiting.append(queued)
            self.new.add(id(queued))

    def _step(self, where: str) -> None:
        if self.preemptive:
            answer = _call(self.policy, "can_preempt")
            assert isinstance(answer, bool), (
                f"{where}: can_preempt() returned {type(answer).__name__}, not True or False"
            )
            if answer and self.waiting:
                self._preempt(where)
        for queued in self._ordered(where)[: MAX_RUNNING - len(self.running)]:
            self._admit(queued)
        if self.running and self.accounts:
            used = dict.fromkeys(sequence.caller for sequence in self.running)
            usage = [TokenUsage(caller=name, computed=self.random.randint(0, 9), generated=1) for name in used]
            passed = list(usage)
            _call(self.policy, "charge", passed)
            assert passed == usage, f"{where}: charge() changed what it was given"
        for queued in [sequence for sequence in self.running if self.random.random() < 0.3]:
            self._end(queued, self.running)
        if self.waiting and self.random.random() < 0.1:
            self._end(self.random.choice(self.waiting), self.waiting)

    def _ordered(self, where: str) -> list[Queued]:
        known = {id(sequence): sequence for sequence in self.waiting}
        answer: Sequence[Waiting] = _call(self.policy, "order", list(self.waiting), _no_match)
        ids = [id(item) for item in answer]
        assert sorted(ids) == sorted(known), (
            f"{where}: order() returned {len(ids)} sequences, and not each of the {len(known)} waiting ones once"
        )
        return [known[number] for number in ids]

    def _preempt(self, where: str) -> None:
        free_running_slots = MAX_RUNNING - len(self.running)
        ended, first = _preempted(self.policy, self.running, self.waiting, free_running_slots, where)
        for reference in ended:
            self.running.remove(reference)
        for queued in first[: MAX_RUNNING - len(self.running)] if ended else ():
            self._admit(queued)
        self.waiting += ended

    def _admit(self, queued: Queued) -> None:
        self.waiting.remove(queued)
        self.running.append(queued)
        self._no_longer_new(queued)

    def _end(self, sequence: Queued, where: list[Queued]) -> None:
        where.remove(sequence)
        self._no_longer_new(sequence)
        if sequence.caller not in self._open_callers():
            self._notify("deactivated", sequence.caller)

    def _no_longer_new(self, sequence: Queued) -> None:
        if id(sequence) in self.new:
            self.new.discard(id(sequence))
            if not self._has_new(sequence.caller):
                self._notify("left_queue", sequence.caller)

    def _has_new(self, caller: str) -> bool:
        return any(id(sequence) in self.new for sequence in self.waiting if sequence.caller == caller)

    def _open_callers(self) -> set[str]:
        return {sequence.caller for sequence in (*self.waiting, *self.running)}

    def _notify(self, name: str, *arguments: Any) -> None:
        if self.accounts:
            answer = _call(self.policy, name, *arguments)
            assert answer is None, f"{name}() returned {answer!r}, and must return nothing"


def _preempted(
    policy: Any, running: Sequence[Queued], waiting: Sequence[Queued], free_running_slots: int, where: str
) -> tuple[list[Queued], list[Queued]]:
    """Return what ``preempt`` gives, after comparing it with what it was given."""
    passed = list(running), list(waiting)
    answer = _call(policy, "preempt", *passed, free_running_slots)
    assert isinstance(answer, tuple) and len(answer) == 2, (
        f"{where}: preempt() must return two sequences, not {answer!r}"
    )
    assert passed == (list(running), list(waiting)), f"{where}: preempt() changed a list that it was given"
    parts: list[list[Queued]] = []
    for part, among, name in ((answer[0], running, "running"), (answer[1], waiting, "waiting")):
        known = {id(sequence): sequence for sequence in among}
        ids = [id(sequence) for sequence in part]
        assert known.keys() >= set(ids), f"{where}: preempt() returned a sequence that is not {name}"
        assert len(ids) == len(set(ids)), f"{where}: preempt() returned a {name} sequence twice"
        parts.append([known[number] for number in ids])
    ended, first = parts
    assert not ended or first, f"{where}: preempt() preempts sequences and names no waiting one that runs instead"
    return ended, first


def _no_match(waiting: Waiting) -> Match:
    """Nothing is cached."""
    return Match((), None)
