from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sglang_plug import PluginError, Plugins, TokenUsage, Waiting
from sglang_plug.testing import check_schedule_policy


@pytest.mark.parametrize("name", Plugins.discover().names("schedule"))
def test_built_in_policies_pass(name: str) -> None:
    check_schedule_policy(name)


class FirstCome:
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return sorted(waiting, key=lambda sequence: sequence.arrived)


class LosesTheLast(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        ordered = super().order(waiting, match)
        return ordered[:-1] if len(ordered) > 2 else ordered


class OnlyAWindow(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return super().order(waiting, match)[:256]


class OncePerArrival(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return list({sequence.arrived: sequence for sequence in waiting}.values())


class Repeats(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return [*super().order(waiting, match), *waiting[:1]]


class Copies(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return [type(sequence)(sequence.tokens, sequence.priority, sequence.arrived) for sequence in waiting]


class EmptiesTheQueue(FirstCome):
    def order(self, waiting: Any, match: Any) -> Any:
        ordered = []
        while waiting:
            ordered.append(waiting.pop(0))
        return ordered


class SortsInPlace(FirstCome):
    def order(self, waiting: Any, match: Any) -> Any:
        waiting.sort(key=lambda sequence: sequence.arrived)
        return tuple(waiting)


class FailsOnEmpty(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        oldest = min(sequence.arrived for sequence in waiting)
        return sorted(waiting, key=lambda sequence: sequence.arrived - oldest)


class ComparesSequences(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return [sequence for _, sequence in sorted((sequence.arrived, sequence) for sequence in waiting)]


class Shuffles(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return random.sample(list(waiting), len(waiting))


class Rotates(FirstCome):
    def __init__(self) -> None:
        self.turn = itertools.count()

    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        start = next(self.turn) % len(waiting) if waiting else 0
        return [*waiting[start:], *waiting[:start]]


class Generator(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return (sequence for sequence in waiting)


class NeedsANode(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return sorted(waiting, key=lambda sequence: match(sequence).node.depth)


class RaisesPriority(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        for sequence in waiting:
            sequence.priority += 1
        return super().order(waiting, match)


class ChangesTokens(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        for sequence in waiting:
            if len(sequence.tokens) > 40:
                sequence.tokens.append(0)
        return super().order(waiting, match)


class Remembers(FirstCome):
    """Keeps sequences that have left the queue, and looks them up in the prefix cache."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}

    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        self.known |= {id(sequence): sequence for sequence in waiting}
        for sequence in self.known.values():
            match(sequence)
        return super().order(waiting, match)


class Keeps(FirstCome):
    def __init__(self) -> None:
        self.lengths: dict[Any, int] = {}

    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return sorted(waiting, key=lambda sequence: self.lengths.setdefault(sequence, len(match(sequence).slots)))


class Quadratic(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return sorted(waiting, key=lambda sequence: sum(other.arrived < sequence.arrived for other in waiting))


class ByAddress(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return sorted(waiting, key=lambda sequence: (len(match(sequence).slots), id(sequence)))


class ByHash(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return list(set(waiting))


class OnlyTheUnnamed(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        return [sequence for sequence in waiting if not sequence.caller]


class ComparesDeadlines(FirstCome):
    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        if all(sequence.deadline is None for sequence in waiting):
            return list(waiting)
        return sorted(waiting, key=lambda sequence: sequence.deadline)


class RemembersPrompts(FirstCome):
    def __init__(self) -> None:
        self.prompts: set[tuple[int, ...]] = set()

    def order(self, waiting: Sequence[Any], match: Any) -> Any:
        self.prompts |= {tuple(sequence.tokens) for sequence in waiting}
        return list(waiting)


BUGS: list[tuple[Callable[[], Any], str]] = [
    (LosesTheLast, "order\\(\\) left out 1, which would wait for ever"),
    (OnlyAWindow, "700 waiting sequences: order\\(\\) left out 444"),
    (OncePerArrival, "order\\(\\) left out"),
    (Repeats, "returned 1 of them twice"),
    (Copies, "objects that are not those of the queue"),
    (EmptiesTheQueue, "changed the list that it was given"),
    (SortsInPlace, "changed the list that it was given"),
    (FailsOnEmpty, "0 waiting sequences: order\\(\\) raised ValueError"),
    (ComparesSequences, "order\\(\\) raised TypeError"),
    (Shuffles, "another order when it is asked again"),
    (ByAddress, "another order for other sequences with the same properties"),
    (ByHash, "another order for other sequences with the same properties"),
    (Rotates, "another order when it is asked again"),
    (Generator, "order\\(\\) returned generator, not a sequence"),
    (NeedsANode, "order\\(\\) raised AttributeError"),
    (RaisesPriority, "order\\(\\) raised AttributeError.*priority"),
    (ChangesTokens, "order\\(\\) changed a sequence"),
    (Remembers, "which is not in the queue"),
    (Keeps, "20 sequences that have left the queue are kept"),
    (Quadratic, "time grows with the power"),
    (OnlyTheUnnamed, "left out"),
    (ComparesDeadlines, r"order\(\) raised TypeError"),
    (RemembersPrompts, "keeps .* bytes of each request that has ended"),
]


@pytest.mark.planted_bug("schedule")
@pytest.mark.parametrize(("policy", "message"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_bugs_are_named(policy: Callable[[], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_schedule_policy(policy)


class Accounts(FirstCome):
    """Counts what each active caller has used, and admits the callers with the least use first."""

    def __init__(self) -> None:
        self.used: dict[str, int] = {}
        self.queued: set[str] = set()

    def activated(self, caller: str, weight: float) -> None:
        self.used[caller] = 0

    def deactivated(self, caller: str) -> None:
        del self.used[caller]

    def joined_queue(self, caller: str) -> None:
        self.queued.add(caller)

    def left_queue(self, caller: str) -> None:
        self.queued.remove(caller)

    def charge(self, usage: Sequence[TokenUsage]) -> None:
        for sequence in usage:
            self.used[sequence.caller] += sequence.computed + sequence.generated


class Urgent(FirstCome):
    """Lets urgent sequences preempt others."""

    def can_preempt(self) -> bool:
        return True

    def preempt(self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int) -> Any:
        urgent = [sequence for sequence in waiting if sequence.priority > 0][: len(running)]
        lax = [sequence for sequence in running if sequence.priority <= 0][: len(urgent)]
        return lax, urgent[: len(lax)]


@pytest.mark.parametrize("policy", [Accounts, Urgent])
def test_policies_with_further_methods_pass(policy: Callable[[], Any]) -> None:
    check_schedule_policy(policy)


class LacksCharge(Accounts):
    charge = None  # type: ignore[assignment]


class LacksPreempt(Urgent):
    preempt = None


class KeepsAllCallers(Accounts):
    def deactivated(self, caller: str) -> None:
        pass


class ForgetsTheUnnamed(Accounts):
    """Ignores the caller with an empty name."""

    def activated(self, caller: str, weight: float) -> None:
        if caller:
            super().activated(caller, weight)


class DividesByWeight(Accounts):
    def activated(self, caller: str, weight: float) -> None:
        self.used[caller] = int(1 / int(weight))


class AnswersCharges(Accounts):
    def left_queue(self, caller: str) -> Any:
        self.queued.discard(caller)
        return len(self.queued)


class SortsUsage(Accounts):
    def charge(self, usage: Any) -> None:
        super().charge(usage)
        usage.clear()


class FailsWithoutQueue(Accounts):
    def order(self, waiting: Sequence[Waiting], match: Any) -> Sequence[Waiting]:
        if self.used:
            assert max(len(sequence.tokens) for sequence in waiting)
        return list(waiting)


class NoAnswer(Urgent):
    def can_preempt(self) -> Any:
        return None


class SwapsStrangers(Urgent):
    def preempt(self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int) -> Any:
        return waiting[:1], running[:1]


class EndsTwice(Urgent):
    def preempt(self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int) -> Any:
        ended, first = super().preempt(running, waiting, free_running_slots)
        return ended * 2, first


class EndsForNobody(Urgent):
    def preempt(self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int) -> Any:
        return list(running[:1]), []


class OneList(Urgent):
    def preempt(self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int) -> Any:
        return list(running[:1])


class PopsWaiting(Urgent):
    def preempt(self, running: Sequence[Waiting], waiting: Any, free_running_slots: int) -> Any:
        ended, first = super().preempt(running, waiting, free_running_slots)
        for sequence in first:
            waiting.remove(sequence)
        return ended, first


@pytest.mark.planted_bug("schedule")
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (LacksCharge, "must have charge"),
        (LacksPreempt, "must have preempt"),
        (KeepsAllCallers, "forget them in deactivated"),
        (ForgetsTheUnnamed, r"(charge|deactivated)\(\) raised KeyError"),
        (DividesByWeight, r"activated\(\) raised ZeroDivisionError"),
        (AnswersCharges, r"left_queue\(\) returned \d+, and must return nothing"),
        (SortsUsage, r"charge\(\) changed what it was given"),
        (FailsWithoutQueue, r"order\(\) raised ValueError"),
        (NoAnswer, r"can_preempt\(\) returned NoneType"),
        (SwapsStrangers, "returned a sequence that is not running"),
        (EndsTwice, "returned a running sequence twice"),
        (EndsForNobody, "names no waiting one that runs instead"),
        (OneList, "must return two sequences"),
        (PopsWaiting, "changed a list that it was given"),
    ],
)
def test_planted_bugs_in_further_methods_are_named(policy: Callable[[], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_schedule_policy(policy)


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="no schedule named 'fcfz'; did you mean 'fcfs'"):
        check_schedule_policy("fcfz")
