"""Conformance test of schedule policies: every waiting sequence is returned once, and nothing else is changed."""

from __future__ import annotations

import gc
import random
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from sglang_plug.contracts.serving.cache import Match
from sglang_plug.contracts.serving.scheduling import SchedulePolicy, Waiting
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.growth import check_growth

LENGTHS = (0, 1, 2, 3, 40, 700)
"""Lengths of queues."""
SHARED = 48
"""Tokens of the longest cached prefix."""


class _Waiting:
    """A waiting sequence with nothing but what a policy may read."""

    __slots__ = ("_arrived", "_priority", "_tokens", "__weakref__")

    def __init__(self, tokens: Sequence[int], priority: int, arrived: float) -> None:
        self._tokens, self._priority, self._arrived = tokens, priority, arrived

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def priority(self) -> int:
        return self._priority

    @property
    def arrived(self) -> float:
        return self._arrived

    def __repr__(self) -> str:
        return f"<{len(self._tokens)} tokens, priority {self._priority}, arrived {self._arrived}>"


def check_schedule_policy(policy: str | Callable[[], SchedulePolicy]) -> None:
    """Let a policy order queues of many lengths, with and without cached prefixes, as sequences come and go.

    Each sequence is returned once; neither the queue nor a sequence is changed; the same queue is
    ordered the same way; sequences that have left are not kept; the time grows in proportion to the queue.

    Args:
        policy: a factory, or the name an installed plugin declared it under.

    Raises:
        AssertionError: says what is wrong, and for which queue.
        PluginError: no plugin, or more than one, declares the name.
    """
    made = make_with_settings(Plugins.discover().get("schedule", policy)) if isinstance(policy, str) else policy()
    assert callable(getattr(made, "order", None)), f"{type(made).__name__} has no method order(waiting, match)"
    generator = random.Random(6)
    for cached in (False, True):
        cache = _Cache(generator, cached)
        for length in LENGTHS:
            for queue_name, queue in _queues(generator, length):
                where = f"{length} waiting sequences{queue_name}{', with cached prefixes' if cached else ''}"
                _check_queue(made, queue, cache, where)
        _check_changing_queue(made, generator, cache)
    _check_references(made, generator)
    queues = {count: _queue(generator, count) for count in (500, 4000)}
    lookup = _Cache(generator, stored=True)
    check_growth(
        lambda count: lambda: made.order(list(queues[count]), lookup.of(queues[count])),
        list(queues),
        "order() of a queue",
    )


class _Cache:
    """Cached prefixes of one branching text, as ``match`` returns them."""

    def __init__(self, generator: random.Random, stored: bool) -> None:
        self._stored = stored
        self._nodes = [object() for _ in range(SHARED + 1)]
        self._slots = array("q", generator.sample(range(1, 1000), SHARED))

    def of(self, queue: Sequence[_Waiting]) -> Callable[[Waiting], Match]:
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


def _queues(generator: random.Random, length: int) -> list[tuple[str, list[_Waiting]]]:
    alike = [_Waiting((1, 2, 3), 0, 5.0) for _ in range(length)]
    return [
        ("", _queue(generator, length)),
        (" that are all alike", alike),
        (" in the reverse order of arrival", sorted(_queue(generator, length), key=lambda one: -one.arrived)),
    ]


def _queue(generator: random.Random, length: int) -> list[_Waiting]:
    queue = []
    for number in range(length):
        shared = generator.randint(0, SHARED)
        tokens = array("q", [*range(shared), *(generator.randrange(-5, 5) for _ in range(generator.randint(1, 9)))])
        arrived = 1.7e9 + generator.choice((number, generator.randint(0, length)))
        queue.append(_Waiting(tokens, generator.choice((0, 0, -3, 7)), arrived))
    return queue


def _ordered(policy: SchedulePolicy, queue: list[_Waiting], cache: _Cache, where: str) -> list[_Waiting]:
    """Return the order, after comparing it with the queue."""
    given = list(queue)
    before = [(list(one.tokens), one.priority, one.arrived) for one in queue]
    try:
        answer: Any = policy.order(given, cache.of(queue))
        ordered = list(answer)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{where}: order() raised {type(error).__name__}: {error}") from error
    assert isinstance(answer, Sequence), f"{where}: order() gave {type(answer).__name__}, not a sequence"
    unknown = {id(one) for one in ordered} - {id(one) for one in queue}
    assert not unknown, f"{where}: order() returned {len(unknown)} objects that are not those of the queue"
    lost = len(queue) - len({id(one) for one in ordered})
    assert not lost, f"{where}: order() left out {lost}, which would wait for ever"
    assert len(ordered) == len(queue), f"{where}: order() returned {len(ordered) - len(queue)} of them twice"
    same = answer is given or [id(one) for one in given] == [id(one) for one in queue]
    assert same, f"{where}: order() changed the list that it was given; return a new one"
    after = [(list(one.tokens), one.priority, one.arrived) for one in queue]
    assert after == before, f"{where}: order() changed a sequence"
    return ordered


def _check_queue(policy: SchedulePolicy, queue: list[_Waiting], cache: _Cache, where: str) -> None:
    first = _ordered(policy, queue, cache, where)
    second = _ordered(policy, queue, cache, where)
    assert _ids(first) == _ids(second), f"{where}: order() gives another order when it is asked again"


def _check_changing_queue(policy: SchedulePolicy, generator: random.Random, cache: _Cache) -> None:
    """Check a queue whose sequences arrive, are admitted, are aborted and are queued again."""
    queue: list[_Waiting] = []
    admitted: list[_Waiting] = []
    for step in range(40):
        where = f"a queue that changes, step {step + 1}"
        ordered = _ordered(policy, queue, cache, where)
        for one in ordered[: generator.randint(0, 2)]:
            queue.remove(one)
            admitted.append(one)
        if queue and step % 5 == 4:
            queue.remove(generator.choice(queue))
        if admitted and step % 3 == 2:
            queue.insert(0, admitted.pop(generator.randrange(len(admitted))))
        queue += _queue(generator, generator.randint(0, 4))
    _ordered(policy, [], cache, "a queue that has become empty")


def _check_references(policy: SchedulePolicy, generator: random.Random) -> None:
    cache = _Cache(generator, stored=True)
    queue = _queue(generator, 20)
    ended = [weakref.ref(one) for one in queue]
    policy.order(list(queue), cache.of(queue))
    queue = _queue(generator, 3)
    for _ in range(2):
        policy.order(list(queue), cache.of(queue))
    gc.collect()
    kept = sum(1 for one in ended if one() is not None)
    assert not kept, f"{kept} sequences that have left the queue are kept by the policy, so they stay in memory"


def _ids(sequences: Sequence[_Waiting]) -> list[int]:
    return [id(one) for one in sequences]
