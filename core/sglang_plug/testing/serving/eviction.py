"""Conformance test of eviction policies: keys must be comparable, repeatable, and follow from the node alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from itertools import product
from typing import Any

from sglang_plug.contracts.serving.cache import EvictionPolicy, NodeStats
from sglang_plug.testing.declared import factory_of
from sglang_plug.testing.growth import check_growth
from sglang_plug.testing.memory import check_kept

RANDOM_NODES = 120
LEAF = NodeStats(tokens=16, depth=64, created=100.0, used=160.0, hits=3, priority=0)
BETTER: dict[str, dict[str, Any]] = {
    "was used later": {"used": 190.0},
    "was used more often": {"hits": 9},
    "was used billions of times": {"hits": 1 << 40},
    "was created later, and used later": {"created": 180.0, "used": 190.0},
    "was used by a more urgent request": {"priority": 5},
    "is better in every way": {"created": 180.0, "used": 190.0, "hits": 9, "priority": 5},
}
"""Differences that are no reason to evict a leaf earlier."""


def check_eviction_policy(policy: str | Callable[[], EvictionPolicy], *, useful_last: bool = True) -> None:
    """Ask a policy for the keys of many leaves, and sort them.

    Keys of any two leaves are comparable and ordered without contradiction; equal statistics give equal keys; neither
    the leaf nor anything about it is kept or changed; a leaf that is more useful than another is not evicted before it.

    Args:
        policy: a factory, or the name an installed plugin declared it under.
        useful_last: False for a policy that evicts recently used leaves first on purpose.

    Raises:
        AssertionError: says what is wrong, and for which leaf.
        PluginError: no plugin, or more than one, declares the name.
    """
    made = factory_of("eviction", policy)()
    assert callable(getattr(made, "eviction_priority", None)), (
        f"{type(made).__name__} has no method eviction_priority(node)"
    )
    nodes = _nodes()
    keys = [_key(made, node) for node in nodes]
    _check_repeatable(made, nodes, keys)
    _check_order(nodes, keys)
    if useful_last:
        _check_useful_last(made)
    _check_references(made)
    check_growth(lambda count: lambda: _call_often(made, count), (500, 4000), "eviction_priority() of many leaves")
    check_kept(lambda number: _call_once(made, number), f"{type(made).__name__}.eviction_priority()", allowed=40)


def _nodes() -> list[NodeStats]:
    generator = random.Random(4)
    extremes = [
        NodeStats(tokens=tokens, depth=depth, created=created, used=created + age, hits=hits, priority=priority)
        for (tokens, depth), created, age, hits, priority in product(
            ((1, 1), (1 << 20, 1 << 20)), (0.0, 1.7e9), (0.0, 1e5), (0, 1, 1 << 40), (-(1 << 31), 0, 1 << 31)
        )
    ]
    return extremes + [_random_node(generator) for _ in range(RANDOM_NODES)]


def _random_node(generator: random.Random) -> NodeStats:
    tokens, created = generator.randint(1, 500), generator.randint(0, 50) / 2
    return NodeStats(
        tokens=tokens,
        depth=tokens + generator.randint(0, 2000),
        created=created,
        used=created + generator.randint(0, 50) / 2,
        hits=generator.randint(0, 6),
        priority=generator.randint(-2, 2),
    )


def _key(policy: EvictionPolicy, node: NodeStats) -> Any:
    before = astuple(node)
    try:
        key = policy.eviction_priority(node)
    except Exception as error:
        raise AssertionError(f"{node}: eviction_priority() raised {type(error).__name__}: {error}") from error
    assert astuple(node) == before, f"{node}: eviction_priority() changed the leaf, which was {before}"
    return key


def _less(first: Any, second: Any, nodes: Sequence[NodeStats]) -> bool:
    where = f"keys {first!r} and {second!r} of {nodes[0]} and {nodes[1]}"
    try:
        result = first < second
    except Exception as error:
        raise AssertionError(f"{where} cannot be compared: {type(error).__name__}: {error}") from error
    assert isinstance(result, bool), f"{where}: < gives {type(result).__name__}, not a bool"
    return result


def _check_repeatable(policy: EvictionPolicy, nodes: list[NodeStats], keys: list[Any]) -> None:
    for node, key in zip(nodes, keys, strict=True):
        again, copied = _key(policy, node), _key(policy, replace(node))
        for other, when in ((again, "when it is asked again"), (copied, "for a leaf with the same statistics")):
            same = not _less(key, other, (node, node)) and not _less(other, key, (node, node))
            assert same and key == other, f"{node}: the key is {key!r}, and {other!r} {when}"


def _check_order(nodes: list[NodeStats], keys: list[Any]) -> None:
    """Check that every two keys are less, greater or equal, and that sorting puts no key before a smaller one."""
    pairs = list(zip(nodes, keys, strict=True))
    for (node, key), (other_node, other_key) in product(pairs, pairs):
        relations = (
            _less(key, other_key, (node, other_node)),
            _less(other_key, key, (other_node, node)),
            bool(key == other_key),
        )
        assert sum(relations) == 1, (
            f"keys {key!r} and {other_key!r} of {node} and {other_node} are not ordered: less, greater and equal are "
            f"{relations}"
        )
    order = sorted(range(len(keys)), key=lambda index: keys[index])
    for position, index in enumerate(order):
        for later in order[position + 1 :]:
            assert not keys[later] < keys[index], (
                f"keys contradict each other: sorted, {keys[index]!r} comes before the smaller {keys[later]!r}"
            )


def _check_useful_last(policy: EvictionPolicy) -> None:
    for difference, values in BETTER.items():
        better = replace(LEAF, **values)
        useful, other = _key(policy, better), _key(policy, LEAF)
        assert not _less(useful, other, (better, LEAF)), (
            f"of two leaves that are alike otherwise, the one that {difference} is evicted first: its key is "
            f"{useful!r}, that of the other {other!r}; the lowest is evicted first"
        )


def _check_references(policy: EvictionPolicy) -> None:
    node = replace(LEAF)
    before = sys.getrefcount(node)
    key = policy.eviction_priority(node)
    del key
    policy.eviction_priority(replace(LEAF, tokens=1))
    assert sys.getrefcount(node) <= before, "eviction_priority() keeps the leaf, so evicted prefixes stay in memory"


def _call_once(policy: EvictionPolicy, number: int) -> None:
    policy.eviction_priority(replace(LEAF, used=1e6 + number, depth=64 + number))


def _call_often(policy: EvictionPolicy, count: int) -> None:
    for number in range(count):
        policy.eviction_priority(replace(LEAF, used=float(number), depth=64 + number))
