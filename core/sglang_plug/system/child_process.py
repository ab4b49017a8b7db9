"""Starting child processes that import nothing from the working directory and ignore signals for the group."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that Ctrl-C and service managers send to every process of a server."""


def python_command(module: str) -> tuple[str, ...]:
    """Return the command that runs ``module``.

    ``-P`` keeps Python from importing modules from the working directory, which may be a folder with foreign files.
    """
    return (sys.executable, "-P", "-m", module)


def child_environment(**added: str) -> dict[str, str]:
    """Return the environment of a child that finds the same modules as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **added}


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    pipe_bytes: int | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start ``command``, which reads from a pipe; ``options`` are ``Popen``'s.

    ``pipe_bytes`` is the size of its pipes; they stay smaller where the system gives this user no more memory for
    pipes. The child begins with the signals of ``STOP_SIGNALS`` blocked, so that none ends it before it calls
    ``leave_signals_to_parent``.
    """
    with _stop_signals_blocked():
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=child_environment() if environment is None else environment, **options
        )
    if pipe_bytes is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(OSError):  # all pipes of a user share a limit, which other programs may have reached
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, pipe_bytes)
    return process


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kill a child unless it has ended, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # a partly written message is lost
            pipe.close()


def leave_signals_to_parent() -> None:
    """Ignore the signals of ``STOP_SIGNALS`` from now on: they go to the whole group, and the parent ends its children.

    Must be called by the main thread of a child. The child's own children ignore the signals, too.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block the signals in this thread; processes that it starts inside the context inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
