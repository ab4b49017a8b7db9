"""Blocks whose content follows from their key, and a process that stores them until it is killed.

As a script with the arguments ``MODULE:FUNCTION FOLDER CAPACITY`` it reads a number per line, and forks a process for
each that opens the store and stores the blocks of that number. It answers with the id of that process.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable
from hashlib import blake2b, shake_128
from pathlib import Path

from sglang_plug.contracts.serving.kv_store import KVBlock, KVStore

OpenStore = Callable[[Path, int], KVStore]
SIZES = (1, 63, 64, 4096, 5000, 65536, 100_000)
PREPARED = 128
"""Number of blocks of each writer."""


def block_key(writer: int, number: int) -> bytes:
    """Return the key of a block."""
    return blake2b(f"{writer} {number}".encode(), digest_size=KVBlock.KEY_BYTES).digest()


def block_content(key: bytes, size: int | None = None) -> bytes:
    """Return the content of the block with ``key``; its size follows from the key, too, unless one is given."""
    return shake_128(key).digest(SIZES[key[0] % len(SIZES)] if size is None else size)


def block_of(key: bytes, size: int | None = None) -> KVBlock:
    """Return the block with ``key``."""
    return KVBlock(key, memoryview(block_content(key, size)))


def write_forever(store: KVStore, writer: int) -> None:
    """Store the blocks of ``writer`` again and again, a few at once."""
    blocks = [block_of(block_key(writer, number)) for number in range(PREPARED)]
    print("storing", flush=True)
    for start in itertools.count(step=4):
        store.store(blocks[start % PREPARED : start % PREPARED + 4])


def main(target: str, folder: str, capacity: str) -> None:
    """Fork a writer for each line of the standard input."""
    module, _, name = target.partition(":")
    make: OpenStore = getattr(importlib.import_module(module), name)
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            try:
                write_forever(make(Path(folder), int(capacity)), int(line))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        print(f"process {child}", flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
