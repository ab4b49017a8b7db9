"""Server process of a benchmark: start and stop ``sglang-plug serve``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(r"http://127\.0\.0\.1:\d+(?=\D)")
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
SERVE = (sys.executable, "-P", "-m", "sglang_plug", "serve")


@dataclass(frozen=True, slots=True)
class Server:
    """A ready server."""

    url: str
    start_seconds: float
    """Seconds from spawning to the ready line."""
    pid: int

    @property
    def memory(self) -> int:
        """Return the resident bytes of the process and its descendants."""
        return sum(resident(pid) for pid in descendants(self.pid))


@contextmanager
def serving(
    arguments: Sequence[str],
    *,
    log: Path,
    timeout: float = 300.0,
    program: Sequence[str] = SERVE,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run ``sglang-plug serve ARGUMENTS --port 0`` until the block ends; its error output goes to ``log``.

    ``environment`` adds variables to those of this process.

    Raises ``RuntimeError`` with the end of the log if it is not ready after ``timeout`` seconds.
    """
    command = [*program, *arguments, "--port", "0"]
    started = time.perf_counter()
    ready = log.with_suffix(".stdout")
    with log.open("w", encoding="utf-8") as errors, ready.open("w", encoding="utf-8") as lines:
        variables = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, stdout=lines, stderr=errors, start_new_session=True, env=variables)
        try:
            url = _wait_ready(process, ready, log, started + timeout)
            yield Server(url, time.perf_counter() - started, process.pid)
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path, deadline: float) -> str:
    while time.perf_counter() < deadline:
        status = process.poll()
        result = READY.search(ready.read_text(encoding="utf-8", errors="replace"))
        if result:
            return result[0]
        if status is not None:
            raise RuntimeError(f"the server ended with status {status}; its log ends:\n{_tail(log)}")
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"the server was not ready in time; its log ends:\n{_tail(log)}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, then kill its whole group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # start_new_session made a separate process group
    except ProcessLookupError:
        pass
    process.wait()


def descendants(pid: int) -> list[int]:
    """Return ``pid`` and every process below it."""
    results = [pid]
    for result in results:
        try:
            tasks = list(Path(f"/proc/{result}/task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                results += map(int, (task / "children").read_text(encoding="utf-8").split())
            except OSError:
                continue
    return results


def resident(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
