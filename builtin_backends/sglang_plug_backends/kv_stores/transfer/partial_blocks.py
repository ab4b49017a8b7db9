"""Blocks of which parts have arrived, and others have not."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from sglang_plug import KVBlockPart


@dataclass(slots=True)
class _PartialBlock:
    data: bytearray
    ends: dict[int, int] = field(default_factory=dict)
    """First byte of each part that is present -> the byte after its last."""

    @property
    def complete(self) -> bool:
        """True if all bytes are present."""
        return sum(end - start for start, end in self.ends.items()) == len(self.data)


class PartialBlocks:
    """Collects the parts of blocks; drops the oldest blocks beyond a number of bytes.

    Args:
        max_bytes: maximum number of bytes of all blocks.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[bytes, _PartialBlock] = OrderedDict()
        self.bytes = 0
        """Bytes that the blocks take, those that are not present included."""

    def add(self, part: KVBlockPart) -> memoryview | None:
        """Add a part; return the content of its block once it is complete, which is then forgotten here.

        A part that is present already is ignored. Raises ``ValueError`` for a part that is outside of its block,
        overlaps with another one, or belongs to a block of another size.
        """
        content = part.data.cast("B")
        end = part.start + content.nbytes
        if not content.nbytes or end > part.size:
            raise ValueError(f"bytes {part.start} to {end} of a block of {part.size}")
        block = self._blocks.get(part.key)
        if block is None:
            if part.size > self._max_bytes:
                return None
            block = self._blocks[part.key] = _PartialBlock(bytearray(part.size))
            self.bytes += part.size
            self._drop_oldest()
        if len(block.data) != part.size:
            raise ValueError(f"a part of a block of {part.size} bytes, which has {len(block.data)}")
        if block.ends.get(part.start) == end:
            return None
        if any(start < end and part.start < other for start, other in block.ends.items()):
            raise ValueError(f"bytes {part.start} to {end} overlap with another part of the block")
        block.data[part.start : end] = content
        block.ends[part.start] = end
        if not block.complete:
            return None
        del self._blocks[part.key]
        self.bytes -= part.size
        return memoryview(block.data)

    def clear(self) -> None:
        """Forget all parts."""
        self._blocks.clear()
        self.bytes = 0

    def _drop_oldest(self) -> None:
        while self.bytes > self._max_bytes:
            self.bytes -= len(self._blocks.popitem(last=False)[1].data)
