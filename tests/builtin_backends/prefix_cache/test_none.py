from __future__ import annotations

from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache


def test_nothing_is_kept() -> None:
    cache = NoCache(1, LeastRecentlyUsed(), lambda: 0.0)
    result = cache.insert([1, 2], [1, 2])
    assert list(result.slots) == []
    assert result == cache.match([1, 2])
    cache.lock(result)
    assert (cache.size, cache.evictable, cache.evict(2), cache.reset()) == (0, 0, [], [])
    cache.unlock(result)
    cache.check()
