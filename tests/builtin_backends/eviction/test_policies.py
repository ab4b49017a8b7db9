from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import NodeStats, Plugins

NODE = NodeStats(tokens=4, depth=8, created=10.0, used=20.0, hits=3, priority=1)


@pytest.mark.parametrize(
    ("name", "earlier"),
    [
        ("lru", {"used": 19.0}),
        ("lfu", {"hits": 2, "used": 99.0}),
        ("lfu", {"used": 19.0}),
        ("fifo", {"created": 9.0, "used": 99.0}),
        ("priority", {"priority": 0, "used": 99.0}),
        ("priority", {"used": 19.0}),
    ],
)
def test_who_goes_first(name: str, earlier: dict[str, Any]) -> None:
    policy = Plugins.discover().get("eviction", name).load()()
    assert policy.eviction_priority(replace(NODE, **earlier)) < policy.eviction_priority(NODE)
