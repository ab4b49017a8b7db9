"""Who owns each KV slot. Slots are handed out in pages; page 0 is the spare that padding uses."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered


class SlotPool:
    """The free list of the KV pool.

    Every slot of ``capacity`` is owned by the free list, the prefix cache or one sequence; the scheduler checks
    ``free + cached + running == capacity``.
    """

    def __init__(self, capacity: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = capacity // page_size
        self._free = list(range(self.num_pages, 0, -1))  # page numbers, the next one last

    @property
    def capacity(self) -> int:
        """Slots that can be owned; a whole number of pages."""
        return self.num_pages * self.page_size

    @property
    def rows(self) -> int:
        """Rows the KV pool needs, the spare page included."""
        return (self.num_pages + 1) * self.page_size

    @property
    def free(self) -> int:
        """Slots on the free list."""
        return len(self._free) * self.page_size

    def missing(self, held: int, wanted: int) -> int:
        """Slots to take from the free list so that ``held`` tokens can become ``wanted``."""
        pages = -(-wanted // self.page_size) - -(-held // self.page_size)
        return max(0, pages) * self.page_size

    def extend(self, slots: array[int], wanted: int) -> None:
        """Grow ``slots`` to ``wanted`` entries; the caller made sure that enough are free."""
        size = self.page_size
        while len(slots) < wanted:
            offset = len(slots) % size
            if offset:
                start, room = slots[-1] + 1, size - offset
            else:
                start, room = self._free.pop() * size, size
            slots.extend(range(start, start + min(room, wanted - len(slots))))

    def shrink(self, slots: array[int], wanted: int) -> bool:
        """Free the pages of ``slots`` that its first ``wanted`` entries do not need; True if there were any."""
        size = self.page_size
        kept = -(-wanted // size) * size
        spare = slots[kept:]
        del slots[wanted:]
        self.give_back(spare)
        return bool(spare)

    def give_back(self, slots: Ordered[int]) -> None:
        """Free whole pages: ``slots`` begins at a page's first slot, its last page may be partly used."""
        self._free.extend(slot // self.page_size for slot in slots[:: self.page_size])

    def free_slots(self) -> Iterable[int]:
        """Every free slot, for checks."""
        for page in self._free:
            yield from range(page * self.page_size, (page + 1) * self.page_size)
