from __future__ import annotations

from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache


def test_nothing_is_kept() -> None:
    cache = NoCache(1, LeastRecentlyUsed(), lambda: 0.0)
    found = cache.insert([1, 2], [1, 2])
    assert list(found.slots) == []
    assert found == cache.match([1, 2])
    cache.lock(found)
    assert (cache.size, cache.evictable, cache.evict(2), cache.reset()) == (0, 0, [], [])
    cache.unlock(found)
    cache.check()
