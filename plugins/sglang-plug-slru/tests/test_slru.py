from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_plug_slru import SegmentedLRU, Settings, register_cache_policies

from sglang_plug import NodeStats

ONCE = NodeStats(tokens=4, depth=8, created=10.0, used=20.0, hits=1, priority=0)
TWICE = replace(ONCE, hits=2, used=15.0)


def evicted(policy: SegmentedLRU, *nodes: NodeStats) -> list[NodeStats]:
    return sorted(nodes, key=policy.eviction_priority)


def test_what_was_used_once_goes_before_what_was_used_twice() -> None:
    assert evicted(SegmentedLRU(Settings()), TWICE, ONCE) == [ONCE, TWICE]


def test_within_a_segment_the_longest_unused_goes_first() -> None:
    newer, much_used = replace(ONCE, used=21.0), replace(TWICE, hits=9, used=14.0)
    assert evicted(SegmentedLRU(Settings()), newer, ONCE, TWICE, much_used) == [ONCE, newer, much_used, TWICE]


def test_the_boundary_of_the_segments_is_a_setting() -> None:
    assert evicted(SegmentedLRU(Settings(protected_hits=3)), ONCE, TWICE) == [TWICE, ONCE]


def test_a_setting_that_protects_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Settings(protected_hits=0)


def test_it_declares_one_policy_whose_target_is_here() -> None:
    (spec,) = register_cache_policies()
    assert (spec.kind, spec.name, spec.target) == ("eviction", "slru", "sglang_plug_slru:SegmentedLRU")
