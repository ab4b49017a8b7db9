"""Prefix affinity routes requests with a common prefix to one replica, without overloading it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Request
from sglang_plug_backends.routing.prefix_affinity import AffinitySettings, PrefixAffinity, prefix_lengths


@dataclass
class Capacity:
    capacity: int


@dataclass
class Load:
    replica: int
    tokens: int = 0
    requests: int = 0
    latest: Any = None


def request(*tokens: int, **more: Any) -> Request:
    return Request(id="a", tokens=tokens, **more)


def affinity(**settings: Any) -> PrefixAffinity:
    return PrefixAffinity(AffinitySettings(**{"block": 4, "slack_tokens": 100, **settings}))


def test_a_prompt_follows_its_longest_prefix() -> None:
    policy, replicas = affinity(), [Load(0), Load(1), Load(2)]
    shared = tuple(range(8))
    first = policy.choose(request(*shared, 100), replicas)
    other = policy.choose(request(*shared[:4], *range(50, 58)), replicas)
    assert other == first
    replicas[first].tokens = 10_000
    second = policy.choose(request(*shared, *range(60, 68)), replicas)
    replicas[first].tokens = 0
    assert second != first
    assert policy.choose(request(*shared, *range(60, 68), 1), replicas) == second


@pytest.mark.parametrize("change", [{"salt": "other"}, {"adapter": "other"}])
def test_prompts_that_share_no_cache_do_not_meet(change: dict[str, Any]) -> None:
    policy, replicas = affinity(), [Load(0), Load(1)]
    prompt = request(*range(8))
    assert policy.choose(prompt, replicas) == 0
    # routed like an unknown prefix, to the replica with fewer blocks
    assert policy.choose(replace(prompt, **change), replicas) == 1
    assert policy.choose(prompt, replicas) == 0


def test_an_idle_server_spreads_unrelated_prompts_over_all_caches() -> None:
    policy, replicas = affinity(), [Load(number) for number in range(4)]
    chosen = [policy.choose(request(*range(100 * number, 100 * number + 8)), replicas) for number in range(40)]
    assert [chosen.count(number) for number in range(4)] == [10] * 4


def test_a_replica_that_has_lost_its_cache_is_not_preferred() -> None:
    policy, replicas = affinity(), [Load(0), Load(1)]
    prompt = request(*range(8))
    first = policy.choose(prompt, replicas)
    policy.choose(request(*range(50, 66)), replicas)
    policy.forget(first)
    policy.forget(1 - first)
    replicas[first].tokens = 50
    assert policy.choose(prompt, replicas) == 1 - first


def test_it_remembers_as_much_as_fits_into_the_pool() -> None:
    policy = affinity()
    replicas = [Load(0, latest=Capacity(16)), Load(1, latest=Capacity(16))]
    first = policy.choose(request(*range(8)), replicas)
    for number in range(1, 20):
        policy.choose(request(*range(100 * number, 100 * number + 16)), replicas)
    replicas[first].tokens = 50
    assert policy.choose(request(*range(8)), replicas) == 1 - first


@given(st.integers(1, 64), st.integers(1, 4096))
def test_prefixes_are_known_to_an_eighth_of_their_length(block: int, max_blocks: int) -> None:
    lengths = list(prefix_lengths(block, max_blocks))
    assert lengths[: min(16, max_blocks)] == [block * count for count in range(1, min(16, max_blocks) + 1)]
    for shorter, longer in pairwise(lengths):
        assert longer % block == 0 and longer - shorter <= max(block, longer / 8)
    assert max_blocks * block - lengths[-1] < max(block, max_blocks * block / 8)
    assert len(lengths) < 100


def test_a_long_conversation_stays_where_it_is_cached() -> None:
    policy, replicas = affinity(), [Load(number) for number in range(5)]
    conversation = tuple(range(3000))
    home = policy.choose(request(*conversation), replicas)
    for turn in range(1, 10):
        policy.choose(request(*range(5000 * turn, 5000 * turn + 50)), replicas)
        conversation += tuple(range(10_000 * turn, 10_000 * turn + 100))
        assert policy.choose(request(*conversation), replicas) == home


def test_requests_with_a_prefix_that_many_replicas_have_are_spread_over_them() -> None:
    policy, replicas = affinity(), [Load(number) for number in range(300)]
    shared = tuple(range(8))
    for number in range(300):
        others = [load for load in replicas if load.replica == number]
        policy.choose(request(*shared), [*others, Load(1000 + number)])
    chosen = [policy.choose(request(*shared, *range(100 * turn, 100 * turn + 4)), replicas) for turn in range(1, 200)]
    assert len(set(chosen)) > 100


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple)


@given(st.lists(st.tuples(prompts, st.lists(st.integers(0, 400), min_size=3, max_size=3)), max_size=30))
def test_the_chosen_one_is_never_far_more_loaded_than_another(
    traffic: Sequence[tuple[tuple[int, ...], list[int]]],
) -> None:
    policy = affinity(slack_ratio=2.0)
    for tokens, amounts in traffic:
        replicas = [Load(number, amount) for number, amount in enumerate(amounts)]
        chosen = replicas[policy.choose(request(*tokens), replicas)]
        assert chosen.tokens <= 2.0 * min(amounts) + 100


@given(st.lists(prompts, max_size=30))
def test_without_load_a_repeated_prompt_returns_to_its_replica(sequences: Sequence[tuple[int, ...]]) -> None:
    policy, replicas = affinity(), [Load(number) for number in range(3)]
    homes: dict[tuple[int, ...], int] = {}
    for tokens in [*sequences, *sequences]:
        whole = tokens[: len(tokens) // 4 * 4]
        chosen = policy.choose(request(*tokens), replicas)
        if whole:
            assert homes.setdefault(whole, chosen) == chosen


def hit_rate(policy: Any, replicas: int, slots: int) -> float:
    """Return the share of requests, of 64 groups with a common prefix in random order, whose prefix is cached."""
    generator = random.Random(3)
    caches: list[dict[int, None]] = [{} for _ in range(replicas)]
    loads, hits, count = [Load(number) for number in range(replicas)], 0, 4000
    for _ in range(count):
        group = generator.randrange(64)
        prompt = request(*range(group * 1000, group * 1000 + 128), *(generator.randrange(10**6) for _ in range(8)))
        cache = caches[policy.choose(prompt, loads) if replicas > 1 else 0]
        hits += group in cache
        cache.pop(group, None)
        cache[group] = None
        while len(cache) * 136 > slots // replicas:
            del cache[next(iter(cache))]
    return hits / count


def test_the_hit_rate_is_close_to_that_of_one_engine_with_the_whole_cache() -> None:
    from sglang_plug_backends.routing.policies import RoundRobin

    slots = 64 * 136 * 5 // 4
    whole = hit_rate(None, 1, slots)
    policy = affinity(block=32)
    assert whole > 0.9
    assert hit_rate(policy, 4, slots) >= 0.95 * whole
    assert hit_rate(RoundRobin(), 4, slots) < 0.6 * whole


@pytest.mark.parametrize("wrong", [{"block": 0}, {"slack_ratio": 0.5}, {"slack_tokens": -1}, {"max_blocks": 0}])
def test_settings_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*must be at least"):
        AffinitySettings(**wrong)
