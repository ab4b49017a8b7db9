from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import NodeStats, PluginError, Plugins
from sglang_plug.testing import check_eviction_policy


@pytest.mark.parametrize("name", Plugins.discover().names("eviction"))
def test_built_in_policies_pass(name: str) -> None:
    check_eviction_policy(name)


class ByUse:
    def eviction_priority(self, node: NodeStats) -> Any:
        return node.used


class MostRecent:
    def eviction_priority(self, node: NodeStats) -> Any:
        return -node.used


class MostUsed(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return -node.hits, node.used


class LeastUrgentLast(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return -node.priority, node.used


class Youngest(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return -node.created


class MixedTypes(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return node.used if node.hits else None


class DividesByHits(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return node.used / node.hits


class NotANumber(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return node.used if node.priority >= 0 else math.nan


class Logarithm(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return math.log(node.used - node.created)


class Random(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return random.random()


class ByIdentity(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return id(node)


class CountsCalls(ByUse):
    calls = 0

    def eviction_priority(self, node: NodeStats) -> Any:
        self.calls += 1
        return self.calls


class Dictionaries(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return {"used": node.used}


class Sets(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return {int(node.used), node.hits}


class Writes(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        node.hits = 0
        return node.used


class Keeps(ByUse):
    def __init__(self) -> None:
        self.nodes: list[NodeStats] = []

    def eviction_priority(self, node: NodeStats) -> Any:
        self.nodes.append(node)
        return node.used


class Scans(ByUse):
    def __init__(self) -> None:
        self.times: list[float] = []

    def eviction_priority(self, node: NodeStats) -> Any:
        if node.used not in self.times:
            self.times.append(node.used)
        return node.used


class OldName:
    def rank(self, node: NodeStats) -> Any:
        return node.used


class RemembersKeys(ByUse):
    def __init__(self) -> None:
        self.keys: dict[tuple[float, int], float] = {}

    def eviction_priority(self, node: NodeStats) -> Any:
        return self.keys.setdefault((node.used, node.hits), node.used)


class CountsIn32Bits(ByUse):
    def eviction_priority(self, node: NodeStats) -> Any:
        return node.hits & 0x7FFFFFFF, node.used


BUGS: list[tuple[Callable[[], Any], str]] = [
    (MostRecent, "the one that was used later is evicted first"),
    (MostUsed, "was used more often is evicted first"),
    (LeastUrgentLast, "was used by a more urgent request is evicted first"),
    (Youngest, "was created later, and used later is evicted first"),
    (MixedTypes, "cannot be compared: TypeError"),
    (DividesByHits, "raised ZeroDivisionError"),
    (NotANumber, "nan"),
    (Logarithm, "raised ValueError"),
    (Random, "when it is asked again"),
    (ByIdentity, "for a leaf with the same statistics"),
    (CountsCalls, "when it is asked again"),
    (Dictionaries, "cannot be compared: TypeError"),
    (Sets, "are not ordered"),
    (Writes, "changed the leaf"),
    (Keeps, "keeps the leaf"),
    (Scans, "time grows with the power"),
    (OldName, "has no method eviction_priority"),
    (RemembersKeys, "keeps .* bytes of each request that has ended"),
    (CountsIn32Bits, "was used billions of times is evicted first"),
]


@pytest.mark.planted_bug("eviction")
@pytest.mark.parametrize(("policy", "message"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_bugs_are_named(policy: Callable[[], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_eviction_policy(policy)


def test_a_policy_that_evicts_recent_leaves_on_purpose_passes() -> None:
    check_eviction_policy(MostRecent, useful_last=False)


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="no eviction named 'lruu'; did you mean 'lru'"):
        check_eviction_policy("lruu")
