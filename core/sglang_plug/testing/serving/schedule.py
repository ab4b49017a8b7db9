"""Conformance test of schedule policies: every waiting sequence is returned once, and nothing else is changed."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from sglang_plug.contracts.serving.cache import Match
from sglang_plug.contracts.serving.scheduling import SchedulePolicy, Waiting
from sglang_plug.testing.declared import factory_of
from sglang_plug.testing.growth import check_growth
from sglang_plug.testing.memory import check_kept

from .queued import Queued
from .schedule_callers import check_accounting, check_preemption

LENGTHS = (0, 1, 2, 3, 40, 700)
"""Lengths of queues."""
SHARED = 48
"""Tokens of the longest cached prefix."""


def check_schedule_policy(policy: str | Callable[[], SchedulePolicy]) -> None:
    """Let a policy order queues of many lengths, with and without cached prefixes, as sequences come and go.

    A policy with a method of ``AccountingPolicy`` or ``PreemptivePolicy`` must have all of that protocol. It is then
    told of callers that come and go and of what they used, and asked which running sequences are preempted.

    Each sequence is returned once; neither the queue nor a sequence is changed; the same queue, or one of the same
    properties, is ordered the same way; sequences that have left are not kept; the time grows in proportion to the
    queue.

    Args:
        policy: a factory, or the name an installed plugin declared it under.

    Raises:
        AssertionError: says what is wrong, and for which queue.
        PluginError: no plugin, or more than one, declares the name.
    """
    made = factory_of("schedule", policy)()
    assert callable(getattr(made, "order", None)), f"{type(made).__name__} has no method order(waiting, match)"
    generator = random.Random(6)
    for cached in (False, True):
        cache = _Cache(generator, cached)
        for length in LENGTHS:
            for queue_name, queue in _queues(generator, length):
                where = f"{length} waiting sequences{queue_name}{', with cached prefixes' if cached else ''}"
                _check_queue(made, queue, cache, where)
                _check_copies(made, queue, cache, generator, where)
        _check_changing_queue(made, generator, cache)
    _check_references(made, generator)
    check_kept(lambda number: _order_once(made, number), f"{type(made).__name__}.order()")
    queues = {count: _queue(generator, count) for count in (500, 4000)}
    lookup = _Cache(generator, stored=True)
    check_growth(
        lambda count: lambda: made.order(list(queues[count]), lookup.of(queues[count])),
        list(queues),
        "order() of a queue",
    )
    check_accounting(made)
    check_preemption(made)


class _Cache:
    """Cached prefixes of one branching text, as ``match`` returns them."""

    def __init__(self, generator: random.Random, stored: bool) -> None:
        self._stored = stored
        self._nodes = [object() for _ in range(SHARED + 1)]
        self._slots = array("q", generator.sample(range(1, 1000), SHARED))

    def of(self, queue: Sequence[Queued]) -> Callable[[Waiting], Match]:
        known = {id(waiting) for waiting in queue}

        def match(waiting: Waiting) -> Match:
            assert id(waiting) in known, f"match() was asked for {waiting!r}, which is not in the queue"
            length = self._length(waiting)
            if not self._stored:
                return Match((), None)
            return Match(self._slots[:length], self._nodes[length])

        return match

    def _length(self, waiting: Waiting) -> int:
        return min(sum(1 for index, token in enumerate(waiting.tokens[:SHARED]) if token == index), SHARED)


def _queues(generator: random.Random, length: int) -> list[tuple[str, list[Queued]]]:
    alike = [Queued((1, 2, 3), 0, 5.0) for _ in range(length)]
    return [
        ("", _queue(generator, length)),
        (" that are all alike", alike),
        (" in the reverse order of arrival", sorted(_queue(generator, length), key=lambda waiting: -waiting.arrived)),
    ]


def _queue(generator: random.Random, length: int) -> list[Queued]:
    queue = []
    for number in range(length):
        shared = generator.randint(0, SHARED)
        tokens = array("q", [*range(shared), *(generator.randrange(-5, 5) for _ in range(generator.randint(1, 9)))])
        arrived = 1.7e9 + generator.choice((number, generator.randint(0, length)))
        caller = generator.choice(("", "alice", "bob"))
        deadline = generator.choice((None, arrived + generator.randint(-5, 50)))
        queue.append(Queued(tokens, generator.choice((0, 0, -3, 7)), arrived, caller, deadline))
    return queue


def _ordered(policy: SchedulePolicy, queue: list[Queued], cache: _Cache, where: str) -> list[Queued]:
    """Return the order, after comparing it with the queue."""
    passed = list(queue)
    before = [(list(sequence.tokens), sequence.priority, sequence.arrived) for sequence in queue]
    try:
        answer: Any = policy.order(passed, cache.of(queue))
        ordered = list(answer)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{where}: order() raised {type(error).__name__}: {error}") from error
    assert isinstance(answer, Sequence), f"{where}: order() returned {type(answer).__name__}, not a sequence"
    unknown = {id(sequence) for sequence in ordered} - {id(sequence) for sequence in queue}
    assert not unknown, f"{where}: order() returned {len(unknown)} objects that are not those of the queue"
    lost = len(queue) - len({id(sequence) for sequence in ordered})
    assert not lost, f"{where}: order() left out {lost}, which would wait for ever"
    assert len(ordered) == len(queue), f"{where}: order() returned {len(ordered) - len(queue)} of them twice"
    same = answer is passed or [id(value) for value in passed] == [id(sequence) for sequence in queue]
    assert same, f"{where}: order() changed the list that it was given; return a new one"
    after = [(list(sequence.tokens), sequence.priority, sequence.arrived) for sequence in queue]
    assert after == before, f"{where}: order() changed a sequence"
    return ordered


def _check_queue(policy: SchedulePolicy, queue: list[Queued], cache: _Cache, where: str) -> None:
    first = _ordered(policy, queue, cache, where)
    second = _ordered(policy, queue, cache, where)
    assert _ids(first) == _ids(second), f"{where}: order() gives another order when it is asked again"


def _check_copies(
    policy: SchedulePolicy, queue: list[Queued], cache: _Cache, generator: random.Random, where: str
) -> None:
    """Check that the order depends on the queue and on what the sequences are, not on where they are in memory."""
    numbers = generator.sample(range(len(queue)), len(queue))
    copies = {number: copy.copy(queue[number]) for number in numbers}
    queue_copy = [copies[number] for number in range(len(queue))]
    number_by_id = {id(sequence): number for group in (queue, queue_copy) for number, sequence in enumerate(group)}
    first, second = (
        [number_by_id[id(sequence)] for sequence in _ordered(policy, group, cache, where)]
        for group in (queue, queue_copy)
    )
    assert first == second, (
        f"{where}: order() gives another order for other sequences with the same properties: where a policy does not "
        "care, the order of the queue must stay, not that of addresses or hashes"
    )


def _check_changing_queue(policy: SchedulePolicy, generator: random.Random, cache: _Cache) -> None:
    """Check a queue whose sequences arrive, are admitted, are aborted and are queued again."""
    queue: list[Queued] = []
    admitted: list[Queued] = []
    for step in range(40):
        where = f"a queue that changes, step {step + 1}"
        ordered = _ordered(policy, queue, cache, where)
        for sequence in ordered[: generator.randint(0, 2)]:
            queue.remove(sequence)
            admitted.append(sequence)
        if queue and step % 5 == 4:
            queue.remove(generator.choice(queue))
        if admitted and step % 3 == 2:
            queue.insert(0, admitted.pop(generator.randrange(len(admitted))))
        queue += _queue(generator, generator.randint(0, 4))
    _ordered(policy, [], cache, "a queue that has become empty")


def _check_references(policy: SchedulePolicy, generator: random.Random) -> None:
    cache = _Cache(generator, stored=True)
    queue = _queue(generator, 20)
    ended = [weakref.ref(sequence) for sequence in queue]
    policy.order(list(queue), cache.of(queue))
    queue = _queue(generator, 3)
    for _ in range(2):
        policy.order(list(queue), cache.of(queue))
    gc.collect()
    kept = sum(1 for reference in ended if reference() is not None)
    assert not kept, f"{kept} sequences that have left the queue are kept by the policy, so they stay in memory"


def _order_once(policy: SchedulePolicy, number: int) -> None:
    """Order a queue of sequences that are soon gone."""
    policy.order([Queued((1, 2, number), 0, 1.7e9 + number + index) for index in range(2)], lambda _: Match((), None))


def _ids(sequences: Sequence[Queued]) -> list[int]:
    return [id(sequence) for sequence in sequences]
