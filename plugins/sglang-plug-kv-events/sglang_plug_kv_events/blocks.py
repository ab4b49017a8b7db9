"""Tracks which blocks of tokens are in the prefix cache.

The prefix cache stores pages and slots, whereas a router counts in blocks. A block is in the cache as long as all of
its tokens are. The slot of its last token belongs to this block only, while the slots of earlier tokens may be shared
with blocks that differ later. The cache evicts the ends of prefixes first, so this slot is evicted first.

Blocks are whole pages: prefixes that diverge within a page have two copies of the tokens that they share in it, so a
block that ended there could be cached twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

from sglang_plug import SequenceView

from .events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Scope

HASH_BYTES = 8
POSITIVE = (1 << 63) - 1
"""Hashes have 63 bits, so that readers of signed and of unsigned numbers see the same."""


class BlockTracker:
    """Turns changes of the prefix cache into events.

    Args:
        block_size: tokens of a block, a multiple of the page size.
        publish: receives the events, in order.
    """

    def __init__(self, block_size: int, publish: Callable[[Event], None]) -> None:
        self._size, self._publish = block_size, publish
        self._is_new = True
        self._by_slot: dict[int, int] = {}
        """Slot of a block's last token -> hash of the block."""

    def __len__(self) -> int:
        return len(self._by_slot)

    def cached(self, sequence: SequenceView, hashes: list[int], slots: Sequence[int], length: int) -> None:
        """The first ``length`` tokens of a sequence are in the cache, in the first of ``slots``.

        Args:
            hashes: those of the sequence's first blocks, as far as they are known; this method appends to them.
        """
        size = self._size
        count = length // size
        _extend(hashes, sequence, count, size)
        first = count
        while first and self._by_slot.get(slots[first * size - 1]) != hashes[first - 1]:
            first -= 1
        if first == count:
            return
        if self._is_new:  # by now the subscribers of an engine that was here before have connected again
            self._is_new = False
            self._publish(AllBlocksCleared())
        for number in range(first, count):
            self._by_slot[slots[(number + 1) * size - 1]] = hashes[number]
        for start, end, scope in _scopes(sequence, first, count, size):
            tokens = array("q", sequence.tokens[start * size : end * size])
            self._publish(BlockStored(hashes[start:end], hashes[start - 1] if start else None, tokens, scope))

    def evicted(self, slots: Sequence[int]) -> None:
        """The tokens in ``slots`` are not in the cache any more."""
        take = self._by_slot.pop
        if removed := [number for slot in slots if (number := take(slot, None)) is not None]:
            self._publish(BlockRemoved(removed))

    def clear(self) -> None:
        """The cache is empty."""
        self._by_slot.clear()
        self._publish(AllBlocksCleared())


def _extend(hashes: list[int], sequence: SequenceView, count: int, size: int) -> None:
    """Append to ``hashes`` until there are ``count``; each depends on everything before the end of its block."""
    start = len(hashes)
    if start >= count:
        return
    encoded = memoryview(array("q", sequence.keys(start * size, count * size))).cast("B")
    salt = sequence.salt.encode()
    parent = _bytes(hashes[-1]) if hashes else blake2b(salt, digest_size=HASH_BYTES).digest()
    step = size * 8
    for offset in range(0, len(encoded), step):
        digest = blake2b(encoded[offset : offset + step], digest_size=HASH_BYTES, key=parent).digest()
        hashes.append(int.from_bytes(digest, "big") & POSITIVE)
        parent = _bytes(hashes[-1])


def _bytes(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "big")


def _scopes(sequence: SequenceView, first: int, count: int, size: int) -> list[tuple[int, int, Scope]]:
    """Return runs of blocks, from ``first`` to before ``count``, which have one scope."""
    request = sequence.request
    salt = (blake2b(request.salt.encode(), digest_size=HASH_BYTES).hexdigest(),) if request.salt else ()
    if not request.media:
        return [(first, count, Scope(request.adapter, salt))]
    runs: list[tuple[int, int, Scope]] = []
    for number in range(first, count):
        start, end = number * size, (number + 1) * size
        images = tuple(item.digest.hex() for item in request.media if item.start < end and start < item.end)
        scope = Scope(request.adapter, salt + images)
        if runs and runs[-1][2] == scope:
            runs[-1] = (runs[-1][0], number + 1, scope)
        else:
            runs.append((number, number + 1, scope))
    return runs
