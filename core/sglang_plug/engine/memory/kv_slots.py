"""The free list of KV slots. Slots are allocated in pages; page 0 is the spare page that padding uses."""

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
        self._highest = 0  # highest page that was ever freed: no free page above it has memory yet

    @property
    def capacity(self) -> int:
        """Number of slots that can be owned; a whole number of pages."""
        return self.num_pages * self.page_size

    @property
    def rows(self) -> int:
        """Number of rows that the KV pool needs, the spare page included."""
        return (self.num_pages + 1) * self.page_size

    @property
    def free(self) -> int:
        """Number of slots on the free list."""
        return len(self._free) * self.page_size

    def missing(self, held: int, wanted: int) -> int:
        """Return the number of slots to take from the free list so that ``held`` tokens can grow to ``wanted``."""
        pages = -(-wanted // self.page_size) - -(-held // self.page_size)
        return max(0, pages) * self.page_size

    def extend(self, slots: array[int], wanted: int) -> None:
        """Grow ``slots`` to ``wanted`` entries; the caller must have made sure that enough are free."""
        size = self.page_size
        while len(slots) < wanted:
            offset = len(slots) % size
            if offset:
                start, room = slots[-1] + 1, size - offset
            else:
                start, room = self._free.pop() * size, size
            slots.extend(range(start, start + min(room, wanted - len(slots))))

    def shrink(self, slots: array[int], wanted: int) -> bool:
        """Free the pages of ``slots`` that its first ``wanted`` entries do not need; return True if there were any."""
        size = self.page_size
        kept = -(-wanted // size) * size
        spare = slots[kept:]
        del slots[wanted:]
        self.give_back(spare)
        return bool(spare)

    def give_back(self, slots: Ordered[int]) -> None:
        """Free whole pages: ``slots`` begins at a page's first slot, its last page may be partly used."""
        pages = [slot // self.page_size for slot in slots[:: self.page_size]]
        self._free.extend(pages)
        self._highest = max(self._highest, *pages, 0)

    @property
    def used(self) -> bool:
        """True once a slot was taken."""
        return self._highest > 0 or len(self._free) < self.num_pages

    def unused_runs(self) -> list[tuple[int, int]]:
        """Return the runs of free slots that have been used before, each as start and exclusive end.

        From now on the lowest free slots are taken first, so that those at the end stay unused.
        """
        self._free.sort(reverse=True)
        runs, size, page = list[tuple[int, int]](), self.page_size, 0
        for page in reversed(self._free):
            if page > self._highest:
                break
            if runs and runs[-1][1] == page * size:
                runs[-1] = runs[-1][0], (page + 1) * size
            else:
                runs.append((page * size, (page + 1) * size))
        return runs

    def free_slots(self) -> Iterable[int]:
        """Yield every free slot, for checks."""
        for page in self._free:
            yield from range(page * self.page_size, (page + 1) * self.page_size)
