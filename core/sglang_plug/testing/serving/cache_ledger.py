"""The slots that a prefix cache owns, recorded separately: each operation is compared with what it must do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from sglang_plug.contracts.serving.cache import Match, PrefixCache

T = TypeVar("T")
Prefix = tuple[str, tuple[int, ...]]
"""A salt, and the tokens up to the end of a page."""


class Ledger:
    """Calls a cache and raises ``AssertionError`` where it does anything but what its contract says.

    Args:
        cache: empty.
        page_size: that of the cache.
    """

    def __init__(self, cache: PrefixCache, page_size: int) -> None:
        self.cache = cache
        self.where = "a new cache"
        """The operation, for messages."""
        self._page_size = page_size
        self._pages: dict[Prefix, list[int]] = {}
        self._prefixes: dict[int, Prefix] = {}
        self._locks = Counter[int]()
        self._next_page = 1

    @property
    def owned(self) -> dict[int, int]:
        """The slots that the cache owns, each with the first token of its prefix."""
        return {slot: prefix[1][0] for slot, prefix in self._prefixes.items()}

    def new_slots(self, count: int) -> list[int]:
        """Return slots of whole pages that nobody has."""
        pages = range(self._next_page, self._next_page + count // self._page_size)
        self._next_page = pages.stop
        return [page * self._page_size + offset for page in pages for offset in range(self._page_size)]

    def match(self, tokens: Sequence[int], salt: str, priority: int = 0) -> Match:
        """Compare a match, and what ``find`` returns, with the longest prefix that the cache owns."""
        match = self._call(f"match() of {len(tokens)} tokens", lambda: self.cache.match(tokens, salt, priority))
        expected = self._longest(tokens, salt)
        self._compare(f"match() of {_short(tokens)} with salt {salt!r}", list(match.slots), expected)
        slots = self._call(f"find() of {len(tokens)} tokens", lambda: self.cache.find(tokens, salt, priority)).slots
        self._compare(f"find() of {_short(tokens)} with salt {salt!r}", list(slots), expected)
        self._call("hash() of Match.node", lambda: hash(match.node))
        return match

    def insert(self, tokens: Sequence[int], salt: str, priority: int, slots: list[int] | None = None) -> None:
        """Insert ``tokens`` in new slots; the cache must return those that it had, and may take the new ones."""
        slots = self.new_slots(len(tokens)) if slots is None else slots
        known = self._longest(tokens, salt)
        name = f"insert() of {_short(tokens)} with salt {salt!r}"
        kept = list(self._call(name, lambda: self.cache.insert(tokens, slots, salt, priority)).slots)
        self._compare(name, kept[: len(known)], known)
        assert len(kept) % self._page_size == 0, f"{self.where}: {name} kept {len(kept)} tokens, not whole pages"
        self._compare(name, kept[len(known) :], slots[len(known) : len(kept)])
        for start in range(len(known), len(kept), self._page_size):
            end = start + self._page_size
            prefix = (salt, tuple(tokens[:end]))
            self._pages[prefix] = slots[start:end]
            self._prefixes.update(dict.fromkeys(slots[start:end], prefix))

    def lock(self, match: Match) -> None:
        """Lock a match."""
        self._call("lock()", lambda: self.cache.lock(match))
        self._locks.update(match.slots)

    def unlock(self, match: Match) -> None:
        """Release a lock."""
        self._call("unlock()", lambda: self.cache.unlock(match))
        self._locks.subtract(match.slots)

    def evict(self, count: int) -> list[int]:
        """Evict, and check what was freed."""
        unlocked = self._unlocked()
        freed = self._freed(f"evict({count})", lambda: self.cache.evict(count))
        locked = [slot for slot in freed if self._locks[slot] > 0]
        assert not locked, f"{self.where}: evict({count}) freed slot {locked[0]}, which is locked"
        enough = min(count, unlocked)
        assert len(freed) >= enough, (
            f"{self.where}: evict({count}) freed {len(freed)} slots, and {unlocked} were owned and not locked"
        )
        assert freed == [] or count > 0, f"{self.where}: evict({count}) freed {len(freed)} slots"
        self._forget(freed, f"evict({count})")
        return freed

    def reset(self) -> None:
        """Reset, which must free everything."""
        freed = self._freed("reset()", self.cache.reset)
        missing = self._prefixes.keys() - set(freed)
        assert not missing, f"{self.where}: reset() did not return {len(missing)} slots that the cache owned"
        self._forget(freed, "reset()")
        self.check()

    def check(self) -> None:
        """Compare the numbers, and ask the cache."""
        for name, expected in (("size", len(self._prefixes)), ("evictable", self._unlocked())):
            actual = self._call(name, lambda name=name: getattr(self.cache, name))  # type: ignore[misc]
            assert actual == expected, f"{self.where}: {name} is {actual}, and must be {expected}"
        self._call("check()", self.cache.check)

    def _unlocked(self) -> int:
        return sum(1 for slot in self._prefixes if self._locks[slot] <= 0)

    def _longest(self, tokens: Sequence[int], salt: str) -> list[int]:
        slots: list[int] = []
        for end in range(self._page_size, len(tokens) + 1, self._page_size):
            page = self._pages.get((salt, tuple(tokens[:end])))
            if page is None:
                break
            slots += page
        return slots

    def _freed(self, name: str, call: Callable[[], list[int]]) -> list[int]:
        freed = self._call(name, call)
        assert isinstance(freed, list), f"{self.where}: {name} returned {type(freed).__name__}, not a list of slots"
        twice = [slot for slot, count in Counter(freed).items() if count > 1]
        assert not twice, f"{self.where}: {name} returned slot {twice[0]} twice"
        strange = [slot for slot in freed if slot not in self._prefixes]
        assert not strange, f"{self.where}: {name} returned slot {strange[0]}, which the cache does not own"
        return freed

    def _forget(self, freed: list[int], name: str) -> None:
        for prefix in {self._prefixes[slot] for slot in freed}:
            part = [slot for slot in self._pages.pop(prefix) if slot not in freed]
            assert not part, f"{self.where}: {name} freed a part of a page, and kept slot {part[0]}"
        for slot in freed:
            del self._prefixes[slot]
        for salt, tokens in self._pages:
            upper = tokens[: -self._page_size]
            assert not upper or (salt, upper) in self._pages, (
                f"{self.where}: {name} freed the middle of a prefix of {len(tokens)} tokens, whose end can no longer "
                "be matched"
            )

    def _compare(self, name: str, slots: list[int], expected: list[int]) -> None:
        assert slots == expected, (
            f"{self.where}: {name} returned {len(slots)} slots {_short(slots)}, and must give {len(expected)}: "
            f"{_short(expected)}"
        )

    def _call(self, name: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise AssertionError(f"{self.where}: {name} raised {type(error).__name__}: {error}") from error


def _short(values: Sequence[int]) -> str:
    listed = ", ".join(map(str, values[:12]))
    return f"[{listed}{', …' if len(values) > 12 else ''}]"
