"""A prefix cache that stores nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug import Match, PrefixCache


class NoCache(PrefixCache):
    """Owns no slot: every match is empty, and inserted slots stay the caller's."""

    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return Match((), None)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return Match((), None)

    def lock(self, match: Match) -> None:
        pass

    def unlock(self, match: Match) -> None:
        pass

    def evict(self, count: int) -> list[int]:
        return []

    def reset(self) -> list[int]:
        return []

    @property
    def size(self) -> int:
        return 0

    @property
    def evictable(self) -> int:
        return 0

    def check(self) -> None:
        pass
