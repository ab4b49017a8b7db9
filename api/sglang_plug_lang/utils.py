"""Helpers for documents and scripts: start a server, wait for it, end it."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from .backends.http import bearer
from .images import image_bytes, image_size

__all__ = [
    "execute_shell_command",
    "is_in_ci",
    "launch_server_cmd",
    "load_image",
    "print_highlight",
    "terminate_process",
    "wait_for_server",
]

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""How long a server may take to end before it is killed."""
PORTS = (20000, 32768)
"""Which are given to servers: systems give those above to connections, in the seconds that a server takes to listen."""
ATTEMPTS = 20
READY = (200, 401, 403)
"""Statuses of a server that serves, to those who have the key at least."""


def execute_shell_command(command: str) -> subprocess.Popen[bytes]:
    """Start a command, in a process group of its own and without a shell; its output appears among this one's.

    Line continuations with a backslash are understood, and ``python`` is this interpreter.
    """
    arguments = shlex.split(command.replace("\\\n", " "))
    if not arguments:
        raise ValueError("the command is empty")
    return _start(arguments)


def launch_server_cmd(
    command: str, host: str = "0.0.0.0", port: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server with ``--port`` added: a free one, unless ``port`` says which. The process, and the port.

    The address to listen at is the command's own ``--host``; ``host`` is where the port has to be free.
    """
    return launch_server(shlex.split(command.replace("\\\n", " ")), host, port)


def launch_server(
    arguments: Sequence[str], host: str = "0.0.0.0", port: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """``launch_server_cmd`` for a command that is a list."""
    if not arguments:
        raise ValueError("the command is empty")
    chosen = _free_port(host) if port is None else port
    return _start([*arguments, "--port", str(chosen)]), chosen


def wait_for_server(
    base_url: str,
    timeout: float | None = None,
    process: subprocess.Popen[bytes] | None = None,
    api_key: str | None = None,
) -> None:
    """Wait until ``/v1/models`` answers.

    Raises ``TimeoutError`` after ``timeout`` seconds, and ``RuntimeError`` if ``process`` ends.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    url = base_url.rstrip("/") + "/v1/models"
    with httpx.Client(headers=bearer(api_key), timeout=5.0) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(url).status_code in READY:
                    return
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode} before it was ready; see its output")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"no server at {base_url} within {timeout} s")
            time.sleep(POLL_SECONDS)


def terminate_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started; what does not end by itself is killed."""
    family = _descendants(process.pid)
    leads = process.poll() is None and hasattr(os, "getpgid") and os.getpgid(process.pid) == process.pid
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if leads:
            os.killpg(process.pid, signal.SIGKILL)
    for pid, started in family.items():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _status(pid)[1:] == started:
                os.kill(pid, signal.SIGKILL)
    process.wait()


def is_in_ci() -> bool:
    """Whether this runs in continuous integration, as services tell with the environment variable ``CI``."""
    return os.environ.get("CI", "").strip().lower() not in ("", "0", "false", "no")


def print_highlight(content: object) -> None:
    """Print so that it stands out: in bold on a terminal, plainly elsewhere."""
    print(f"\033[1m{content}\033[0m" if sys.stdout.isatty() else content, flush=True)


def load_image(source: str | bytes | Path) -> tuple[bytes, tuple[int, int] | None]:
    """The bytes of an image (at an address, in a file, in a data address, or given) and its width and height.

    The size is ``None`` for formats other than PNG, GIF and JPEG. Raises ``OSError`` if there is nothing to read.
    """
    found = image_bytes(source)
    return found, image_size(found)


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    first = sys.executable if arguments[0] in ("python", "python3") else arguments[0]
    return subprocess.Popen([first, *arguments[1:]], stdin=subprocess.DEVNULL, start_new_session=True)


def _free_port(host: str) -> int:
    draw = random.SystemRandom()  # whoever has seeded the other one may have done so in several processes
    for _ in range(ATTEMPTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = draw.randrange(*PORTS)
            probe.bind((host, port))
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        found: int = probe.getsockname()[1]
    return found


Status = tuple[int, ...]
"""Parent, then what tells a process from a later one with the same id: group, session, start."""


def _status(pid: int) -> Status:
    """Empty if there is no such process, or no ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ()
    return tuple(int(fields[index]) for index in (1, 2, 3, 19))


def _descendants(pid: int) -> dict[int, Status]:
    """Processes that ``pid`` started, and those that they started."""
    known = {int(path.name): _status(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    found: dict[int, Status] = {}
    parents = {pid}
    while parents:
        children = {one for one, status in known.items() if status and status[0] in parents and one not in found}
        found.update({one: known[one][1:] for one in children})
        parents = children
    return found
