"""Kills the processes that tests have started, once the process that ran the tests has ended for any reason.

This file is also the program that does so: its standard input is a pipe that closes with that process. Whatever the
tests start inherits a variable of the environment, also in a session of its own; who has it then is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


class Reaper:
    """Starts the program that kills the processes of the tests when this process ends, even if it is killed."""

    def __init__(self) -> None:
        self._name = f"TESTS_OF_{os.getpid()}"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self._name], stdin=subprocess.PIPE, start_new_session=True
        )
        os.environ[self._name] = "1"

    def close(self) -> None:
        """Kill the remaining processes, and wait until they are gone."""
        os.environ.pop(self._name, None)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def marked(name: str) -> Iterator[int]:
    """Yield the ids of processes whose environment has the variable ``name``."""
    start = name.encode() + b"="
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if any(variable.startswith(start) for variable in environment.read_bytes().split(b"\0")):
                yield int(environment.parent.name)


def main(name: str) -> None:
    """Wait for the end of the standard input; then kill marked processes until none is left."""
    sys.stdin.buffer.read()
    while pids := list(marked(name)):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
