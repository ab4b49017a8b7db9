from __future__ import annotations

import mmap
import os
from pathlib import Path

from benchmarks.host_memory import anonymous_bytes


def test_memory_that_a_process_has_written_to_is_counted_and_mapped_files_are_not(tmp_path: Path) -> None:
    size = 32 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    before = anonymous_bytes(os.getpid())
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped.rfind(b"x") == -1
        assert anonymous_bytes(os.getpid()) - before < size / 2
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) as own:  # not the heap, which may have freed pages to give
        own.write(b"x" * size)
        assert anonymous_bytes(os.getpid()) - before > size / 2


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert anonymous_bytes(2**22 + 1) == 0
