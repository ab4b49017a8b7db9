"""Routing policies: properties that hold for any traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Plugins, Request
from sglang_plug_backends.routing.policies import LeastTokens, RoundRobin


@dataclass
class Load:
    replica: int
    tokens: int = 0
    requests: int = 0
    latest: None = None


REQUEST = Request(id="a", tokens=(1, 2, 3))
numbers = st.sets(st.integers(0, 9), min_size=2).map(sorted)
loads = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=2, max_size=9)


def test_prefix_affinity_is_the_default() -> None:
    plugins = Plugins.discover()
    assert set(plugins.names("routing")) == {"round-robin", "least-tokens", "prefix-affinity"}
    assert plugins.choose("routing", None) == "prefix-affinity"  # type: ignore[arg-type]


@given(numbers)
def test_one_after_the_other(replicas: list[int]) -> None:
    policy, serving = RoundRobin(), [Load(number) for number in replicas]
    assert [policy.choose(REQUEST, serving) for _ in range(2 * len(replicas))] == replicas * 2


@given(st.lists(numbers, min_size=1, max_size=20))
def test_the_turn_goes_on_while_replicas_come_and_go(serving: list[list[int]]) -> None:
    policy, last = RoundRobin(), -1
    for replicas in serving:
        chosen = policy.choose(REQUEST, [Load(number) for number in replicas])
        later = [number for number in replicas if number > last]
        assert chosen == (later or replicas)[0]
        last = chosen


@given(loads)
def test_nobody_has_fewer_tokens_than_the_chosen_one(amounts: Sequence[tuple[int, int]]) -> None:
    replicas = [Load(number, tokens, requests) for number, (tokens, requests) in enumerate(amounts)]
    chosen = replicas[LeastTokens().choose(REQUEST, replicas)]
    assert all((chosen.tokens, chosen.requests) <= (load.tokens, load.requests) for load in replicas)


def test_of_very_many_replicas_every_one_has_its_turn_and_loads_stay_even() -> None:
    policy, serving = LeastTokens(), [Load(number) for number in range(0, 2000, 2)]
    by_number = {load.replica: load for load in serving}
    for _ in range(5 * len(serving)):
        by_number[policy.choose(REQUEST, serving)].tokens += 10
    assert {load.tokens for load in serving} <= {40, 50, 60}
    serving[777].tokens = 1000
    chosen = [policy.choose(REQUEST, serving) for _ in range(len(serving))]
    assert serving[777].replica not in chosen
