"""A plugin with a prefix cache whose content a test in the same process can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang_plug import Match, PrefixCacheSpec, hookimpl
from sglang_plug_backends.prefix_cache.radix import RadixCache


@hookimpl
def register_cache_policies() -> Iterator[PrefixCacheSpec]:
    yield PrefixCacheSpec(name="watched", target="tests.plugins.watched_cache:WatchedCache")


class WatchedCache(RadixCache):
    """A radix cache that records the inserted sequences."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._inserted = set[tuple[str, tuple[int, ...]]]()
        caches.append(self)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        """Cache a sequence, and record it."""
        self._inserted.add((salt, tuple(tokens)))
        return super().insert(tokens, slots, salt, priority)

    def prefixes(self, size: int) -> set[tuple[str, tuple[int, ...]]]:
        """Return salt and tokens of each cached prefix of whole blocks of ``size``."""
        cached = [(salt, tokens[: len(self.find(tokens, salt).slots)]) for salt, tokens in self._inserted]
        return {(salt, tokens[:end]) for salt, tokens in cached for end in range(size, len(tokens) + 1, size)}


caches: list[WatchedCache] = []
"""Every cache that was made in this process."""
