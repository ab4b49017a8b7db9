"""Conformance test of deployments: nothing of a client runs once it is closed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from .requests import until

OF_ASYNCIO = "asyncio_"
"""Beginning of the names of threads that the event loop keeps."""


def threads_and_processes() -> set[threading.Thread | int]:
    """Return the threads of this process and, where the system lists them, the ids of processes that it has started.

    The threads themselves: the number of one that has ended is soon that of another.
    """
    threads = {thread for thread in threading.enumerate() if not thread.name.startswith(OF_ASYNCIO)}
    return threads | _children()


async def check_ended(kept: set[threading.Thread | int]) -> None:
    """Wait until only ``kept`` is running. Raises ``AssertionError`` with the rest if that takes too long."""

    async def have_ended() -> bool:
        return threads_and_processes() <= kept

    try:
        await until(have_ended, "the end of an engine")
    except AssertionError as error:
        names = sorted(map(_name, threads_and_processes() - kept))
        raise AssertionError(f"close() has returned, and still running is {', '.join(names)}") from error


def _name(running: threading.Thread | int) -> str:
    return f"process {running}" if isinstance(running, int) else f"thread {running.name} ({running.ident})"


def _children() -> set[int]:
    numbers = set[int]()
    for file in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            numbers.update(map(int, file.read_text().split()))
        except OSError:  # the thread has ended
            continue
    return numbers
