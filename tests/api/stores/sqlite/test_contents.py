"""Files that are opened for a caller that is cancelled meanwhile are closed, and removed if they are new."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from sglang_plug_api.stores.sqlite.contents import FileContent, read_file

TIMEOUT = 60.0


async def test_a_file_that_is_opened_too_late_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    reading = asyncio.create_task(anext(read_file(path)))  # waits, as a slow file system does
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    writer = await asyncio.to_thread(os.open, path, os.O_WRONLY)
    deadline = time.monotonic() + TIMEOUT
    with pytest.raises(BrokenPipeError):  # once nobody has it open for reading any more
        while time.monotonic() < deadline:
            os.write(writer, b".")
            await asyncio.sleep(0.01)
    os.close(writer)


async def test_a_file_that_is_created_too_late_is_removed(tmp_path: Path) -> None:
    for number in range(20):
        creating = asyncio.create_task(FileContent.create(tmp_path / f"file {number}"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
    await asyncio.get_running_loop().shutdown_default_executor()  # waits for the threads that open files
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_open_when_its_caller_is_cancelled_is_removed(tmp_path: Path) -> None:
    creating = asyncio.create_task(FileContent.create(tmp_path / "file"))
    await asyncio.sleep(0)
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)  # blocks the event loop, so that the task does not continue
    time.sleep(0.05)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_cannot_be_opened_is_reported_to_nobody(tmp_path: Path) -> None:
    reading = asyncio.create_task(anext(read_file(tmp_path / "missing")))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.sleep(0.05)
