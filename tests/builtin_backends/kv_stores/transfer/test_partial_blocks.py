"""Blocks are assembled from their parts, and only when all parts have arrived."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import KVBlockPart
from sglang_plug_backends.kv_stores.transfer.partial_blocks import PartialBlocks

SIZE = 100


def part(
    start: int, end: int, *, key: bytes = b"a", size: int = SIZE, content: bytes = bytes(range(SIZE))
) -> KVBlockPart:
    """Return the bytes from ``start`` to ``end`` of a block."""
    return KVBlockPart(key, start, size, memoryview(content[start:end]))


@given(
    cuts=st.sets(st.integers(1, SIZE - 1), max_size=12),
    order=st.randoms(use_true_random=False),
    repeated=st.booleans(),
)
def test_a_block_is_complete_with_its_last_part_in_any_order(cuts: set[int], order: object, repeated: bool) -> None:
    ends = [*sorted(cuts), SIZE]
    parts = [part(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    order.shuffle(parts)  # type: ignore[attr-defined]
    blocks = PartialBlocks(SIZE)
    for item in parts[:-1]:
        assert blocks.add(item) is None
        assert not repeated or blocks.add(item) is None
    assert blocks.add(parts[-1]) == bytes(range(SIZE))
    assert blocks.bytes == 0


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (part(40, 60), "overlap"),
        (part(49, 50), "overlap"),
        (part(0, 10), "overlap"),
        (part(0, 50, size=99), "which has 100"),
        (part(50, 100, size=80), "bytes 50 to 100 of a block of 80"),
        (KVBlockPart(b"a", 60, SIZE, memoryview(b"")), "bytes 60 to 60"),
    ],
)
def test_a_part_that_does_not_fit_is_refused_and_changes_nothing(broken: KVBlockPart, problem: str) -> None:
    blocks = PartialBlocks(SIZE)
    blocks.add(part(0, 50))
    with pytest.raises(ValueError, match=problem):
        blocks.add(broken)
    assert blocks.add(part(50, 100)) == bytes(range(SIZE))


def test_the_oldest_blocks_are_dropped_beyond_the_limit() -> None:
    blocks = PartialBlocks(2 * SIZE)
    for key in (b"a", b"b", b"c"):
        blocks.add(part(0, 50, key=key))
    assert blocks.bytes == 2 * SIZE
    assert blocks.add(part(50, 100, key=b"a")) is None, "it was dropped, and the part begins it anew"
    assert blocks.add(part(50, 100, key=b"c")) == bytes(range(SIZE))
    assert blocks.add(part(0, 100, key=b"d", size=3 * SIZE)) is None
    assert blocks.bytes == SIZE, "a block that is larger than the limit is not collected"
    blocks.clear()
    assert blocks.bytes == 0 and blocks.add(part(0, 50, key=b"a")) is None
