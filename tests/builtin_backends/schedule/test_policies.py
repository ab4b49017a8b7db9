from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Match, Plugins, SchedulePolicy, Waiting
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import WINDOW, DepthFirst, LongestPrefix


@dataclass(eq=False)
class Prompt:
    tokens: Sequence[int]
    arrived: float
    priority: int = 0


def policy(name: str) -> SchedulePolicy:
    policy: SchedulePolicy = Plugins.discover().get("schedule", name).load()()
    return policy


def looking(cache: RadixCache) -> Callable[[Waiting], Match]:
    return lambda item: cache.match(item.tokens)


def cached(*prefixes: Sequence[int]) -> RadixCache:
    cache, slot = RadixCache(1, LeastRecentlyUsed(), lambda: 0.0), 1
    for prefix in prefixes:
        cache.insert(prefix, range(slot, slot + len(prefix)))
        slot += len(prefix)
    return cache


def unused(waiting: Waiting) -> Match:
    raise AssertionError("this policy needs no lookup")


def test_first_come() -> None:
    prompts = [Prompt([1], 3.0), Prompt([2], 1.0, priority=9), Prompt([3], 2.0)]
    assert [sequence.arrived for sequence in policy("fcfs").order(prompts, unused)] == [1.0, 2.0, 3.0]


def test_priority_then_arrival() -> None:
    prompts = [Prompt([1], 3.0, 1), Prompt([2], 1.0, 0), Prompt([3], 2.0, 1), Prompt([4], 9.0, 5)]
    assert [sequence.arrived for sequence in policy("priority").order(prompts, unused)] == [9.0, 2.0, 3.0, 1.0]


def test_longest_prefix_then_arrival() -> None:
    cache = cached([1, 2, 3], [7, 8])
    prompts = [Prompt([9], 0.0), Prompt([1, 2, 3, 4], 4.0), Prompt([7, 8, 1], 3.0), Prompt([1, 2, 9], 2.0)]
    assert [sequence.arrived for sequence in policy("lpm").order(prompts, looking(cache))] == [4.0, 2.0, 3.0, 0.0]


def test_depth_first_takes_the_heaviest_branch_whole() -> None:
    cache = cached([1, 2, 3, 4], [1, 2, 5, 6], [7, 8, 9, 10, 11, 12])
    heavy = [Prompt([1, 2, 3, 4, 0], 5.0), Prompt([1, 2, 5, 6, 0], 6.0), Prompt([1, 2, 5, 6, 1], 7.0)]
    light = [Prompt([7, 8, 9, 10, 11, 12, 0], 1.0), Prompt([7, 8, 9, 10, 11, 12, 1], 2.0)]
    cold = [Prompt([50], 0.0), Prompt([60], 0.5)]
    prompts = [*cold, *light, *heavy]
    ordered = policy("dfs-weight").order(prompts, looking(cache))
    assert [sequence.arrived for sequence in ordered] == [6.0, 7.0, 5.0, 1.0, 2.0, 0.0, 0.5]


def test_depth_first_serves_longer_prefixes_before_the_prefixes_they_extend() -> None:
    cache = cached([1, 2], [1, 2, 3, 4])
    prompts = [Prompt([1, 2, 9], 0.0), Prompt([1, 2, 3, 4, 9], 1.0), Prompt([1, 2, 8], 2.0)]
    ordered = policy("dfs-weight").order(prompts, looking(cache))
    assert [sequence.arrived for sequence in ordered] == [1.0, 0.0, 2.0]


def test_depth_first_settles_equal_branches_by_arrival() -> None:
    cache = cached([1], [2], [3])
    prompts = [Prompt([3, 0], 2.0), Prompt([1, 0], 1.0), Prompt([2, 0], 3.0)]
    assert [sequence.arrived for sequence in policy("dfs-weight").order(prompts, looking(cache))] == [1.0, 2.0, 3.0]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12),
)
def test_depth_first_keeps_every_branch_together(prefixes: list[list[int]], tokens: list[list[int]]) -> None:
    cache = cached(*prefixes)
    prompts = [Prompt(token, float(index)) for index, token in enumerate(tokens)]
    random.Random(0).shuffle(prompts)
    ordered = DepthFirst().order(prompts, looking(cache))
    assert sorted(sequence.arrived for sequence in ordered) == [float(index) for index in range(len(tokens))]
    paths = [tuple(cache.match(sequence.tokens).slots) for sequence in ordered]
    for length in range(1, 9):
        starts = [path[:length] for path in paths if len(path) >= length]
        changes = sum(start != other for start, other in zip(starts, starts[1:], strict=False))
        assert changes == max(0, len(set(starts)) - 1)


@pytest.mark.parametrize("kind", [LongestPrefix, DepthFirst])
def test_long_queues_are_looked_up_once_and_only_at_the_head(kind: Callable[[], SchedulePolicy]) -> None:
    cache = cached([1, 2, 3])
    looked_up: list[Waiting] = []

    def match(waiting: Waiting) -> Match:
        looked_up.append(waiting)
        return cache.match(waiting.tokens)

    prompts = [Prompt([index % 5, 2, 3], float(index)) for index in range(2 * WINDOW)]
    ordered = kind().order(prompts[::-1], match)
    assert looked_up == prompts[:WINDOW]
    assert list(ordered[WINDOW:]) == prompts[WINDOW:]
    assert {sequence.tokens[0] for sequence in ordered[: WINDOW // 5]} == {1}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["fair", "fair-lpm", "deadline", "fcfs", "lpm", "priority", "dfs-weight"])
def test_empty_queue(name: str) -> None:
    assert list(policy(name).order([], unused)) == []
