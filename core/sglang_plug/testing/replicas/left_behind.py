"""Conformance test of deployments: nothing of a client runs once it is closed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from .requests import until

OF_ASYNCIO = "asyncio_"
"""Beginning of the names of threads that the event loop keeps."""


def threads_and_processes() -> set[str]:
    """Return the threads of this process and, where the system lists them, the processes that it has started."""
    threads = {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(OF_ASYNCIO)
    }
    return threads | {f"process {number}" for number in _children()}


async def check_ended(kept: set[str]) -> None:
    """Wait until only ``kept`` is running. Raises ``AssertionError`` with the rest if that takes too long."""

    async def have_ended() -> bool:
        return threads_and_processes() <= kept

    try:
        await until(have_ended, "the end of an engine")
    except AssertionError as error:
        remaining = ", ".join(sorted(threads_and_processes() - kept))
        raise AssertionError(f"close() has returned, and still running is {remaining}") from error


def _children() -> set[str]:
    numbers = set[str]()
    for file in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            numbers.update(file.read_text().split())
        except OSError:  # the thread has ended
            continue
    return numbers
