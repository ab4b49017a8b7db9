"""The conformance test of routing policies accepts correct ones and names the faults of others."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sglang_plug import PluginError, Plugins
from sglang_plug.testing import check_routing_policy


@pytest.mark.parametrize("name", Plugins.discover().names("routing"))
def test_built_in_policies_pass(name: str) -> None:
    check_routing_policy(name)


class FewestRequests:
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        return min(replicas, key=lambda load: load.requests).replica


def test_a_policy_of_a_factory_passes() -> None:
    check_routing_policy(FewestRequests)


class ChoosesAPosition(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        return [load.replica for load in replicas].index(super().choose(request, replicas))


class ChoosesALoad(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        return min(replicas, key=lambda load: load.requests)


class RemembersTheDead(FewestRequests):
    def __init__(self) -> None:
        self._of_caller: dict[str, int] = {}

    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        if len(replicas) > 4 or replicas[-1].requests:
            return super().choose(request, replicas)
        return self._of_caller.setdefault(request.caller + str(len(replicas)), replicas[-1].replica)


class AlwaysTheFirst(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        return replicas[0].replica


class NeverTheLast(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        return super().choose(request, replicas[:-1])


class CountsItself(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        chosen = min(replicas, key=lambda load: load.requests)
        chosen.requests += 1
        return chosen.replica


class SortsInPlace(FewestRequests):
    def choose(self, request: Any, replicas: Any) -> Any:
        replicas.sort(key=lambda load: load.requests)
        return replicas[0].replica


class KeepsPrompts(FewestRequests):
    def __init__(self) -> None:
        self._seen: list[Any] = []

    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        self._seen.append(request.tokens)
        return super().choose(request, replicas)


class ForgetsOnlyTheKnown(FewestRequests):
    def __init__(self) -> None:
        self._served: dict[int, int] = {}

    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        replica = super().choose(request, replicas)
        self._served[replica] = self._served.get(replica, 0) + 1
        return replica

    def forget(self, replica: int) -> None:
        del self._served[replica]


class ComparesEveryPair(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        pairs = itertools.combinations(replicas, 2)
        idlest = min(pairs, key=lambda pair: pair[0].requests + pair[1].requests)
        return super().choose(request, idlest)


class RemembersEveryCaller(FewestRequests):
    def __init__(self) -> None:
        self.homes: dict[str, Any] = {}

    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        self.homes[request.caller] = replica = super().choose(request, replicas)
        return replica


class PacksTokens(FewestRequests):
    def choose(self, request: Any, replicas: Sequence[Any]) -> Any:
        array("I", request.tokens)
        return super().choose(request, replicas)


@pytest.mark.planted_bug("routing")
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (object, "no method choose"),
        (ChoosesAPosition, "not the number of a replica"),
        (ChoosesALoad, "not the number of a replica"),
        (RemembersTheDead, "not the number of a replica"),
        (AlwaysTheFirst, "replica 1 got none"),
        (NeverTheLast, "replica 1 got none"),
        (CountsItself, "changed the load"),
        (SortsInPlace, "changed the list"),
        (KeepsPrompts, "keeps [0-9]+ bytes of each request"),
        (ForgetsOnlyTheKnown, r"forget\(\) raised KeyError"),
        (ComparesEveryPair, "time grows with the power"),
        (RemembersEveryCaller, "bytes of each caller after 12000 others"),
        (PacksTokens, "which the engine may refuse: choose.. raised OverflowError"),
    ],
)
def test_what_is_wrong_is_named(policy: Callable[[], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_routing_policy(policy)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PluginError, match="oracle"):
        check_routing_policy("oracle")
