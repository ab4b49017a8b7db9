"""The batches that subscribers can ask for again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .events import CachedBlocks, Event
from .wire import Encode


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that was published."""

    number: int
    events: Sequence[Event]
    payload: bytes


class ReplayBuffer:
    """The last batches one by one, and those before them as the blocks that they have left in the cache.

    A subscriber that asks for batches that are not kept receives one batch instead, which begins by clearing
    everything. So it always ends with the present content, however late it comes.

    Args:
        max_batches: number of batches that are kept.
        encode: makes the payload of a batch.
    """

    def __init__(self, max_batches: int, encode: Encode) -> None:
        self._max_batches, self._encode = max_batches, encode
        self._batches = deque[SentBatch]()
        self._before = CachedBlocks()

    def append(self, batch: SentBatch) -> None:
        """Keep a batch, which follows the one before it."""
        self._batches.append(batch)
        if len(self._batches) > self._max_batches:
            self._before.apply(self._batches.popleft().events)

    def since(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the numbers and the payloads of the batches from ``number`` on."""
        if not self._batches:
            return
        oldest = self._batches[0].number
        if number < oldest:
            yield oldest - 1, self._encode(time.time(), self._before.events())
        for batch in self._batches:
            if batch.number >= number:
                yield batch.number, batch.payload
