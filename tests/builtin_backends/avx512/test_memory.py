"""Allocation of parts of huge pages: aligned, disjoint, and freed with the last reference."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from sglang_plug_backends.avx512.memory import BLOCK, LINE, PageMemory


def test_pieces_are_aligned_and_apart() -> None:
    memory = PageMemory()
    pieces = [memory.take(count) for count in (1, 33, 1000, 31)]
    for index, piece in enumerate(pieces):
        assert piece.dtype == torch.bfloat16 and piece.data_ptr() % LINE == 0
        piece.fill_(index)
    assert [piece.unique().tolist() for piece in pieces] == [[0], [1], [2], [3]]
    assert [len(piece) for piece in pieces] == [1, 33, 1000, 31]


def test_more_than_a_block() -> None:
    memory = PageMemory()
    large = memory.take(BLOCK)  # twice as many bytes
    large[-1] = 5
    assert len(large) == BLOCK and memory.take(10).data_ptr() != large.data_ptr()


def resident() -> int:
    """Return the number of bytes of this process that are in memory now, not their maximum."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_goes_back() -> None:
    def touched() -> None:
        PageMemory().take(BLOCK // 2).fill_(1)

    touched()
    before = resident()
    for _ in range(4):
        touched()
    assert resident() - before < BLOCK
