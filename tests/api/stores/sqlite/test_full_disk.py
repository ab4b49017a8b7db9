"""Tests of the SQLite store on a disk that is full, which is a file system of 2 MiB in memory."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

DISK = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2m disk /mnt && exec "$@"', "sh")
"""A command line that runs another one with an empty file system of 2 MiB at ``/mnt``, which it alone sees."""
FILL_AND_DELETE = """
import asyncio, contextlib
from sglang_plug import FileRecord, StorageUnavailable, StoreContext
from sglang_plug_api.stores.sqlite.store import SQLiteStore

async def add(store, id):
    content = await store.create_content(id)
    try:
        await content.write(bytes(200_000))
        await content.commit()
        await store.add_file(FileRecord(id=id, filename=id, purpose="batch", bytes=200_000, created_at=1))
    except StorageUnavailable as error:
        assert error.is_disk_full, error
        await content.discard()
        return False
    return True

async def main():
    store = SQLiteStore(StoreContext(folder="/mnt/storage"))
    count = 0
    while await add(store, f"file-{count}"):
        count += 1
    with contextlib.suppress(OSError), open("/mnt/rest", "wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    for number in range(count):
        await store.remove_file(f"file-{number}")
    page = await store.files(limit=100, after=None, ascending=True)
    left = list((store.folder / "files").iterdir())
    print(count, len(page.items), len(left), await add(store, "another"))
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def can_mount() -> None:
    """Skip a test where this user may not mount a file system of its own."""
    if shutil.which("unshare") is None or subprocess.run([*DISK, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a file system in a namespace of its own")


@pytest.mark.usefixtures("can_mount")
def test_files_can_be_deleted_from_a_full_disk() -> None:
    done = subprocess.run([*DISK, sys.executable, "-c", FILL_AND_DELETE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, listed, left, added = done.stdout.split()
    assert int(count) > 3
    assert (listed, left, added) == ("0", "0", "True")
