"""Processes of servers: start one, wait until it serves, end it with all that it started."""

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

from .http_client import bearer

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""Seconds for a server to end before it is killed."""
PORTS = (20000, 32768)
"""Range of server ports. Systems use higher ports for connections, which could take one before the server listens."""
ATTEMPTS = 20
OWN_PACKAGES = ("sglang_plug", "sglang_plug_lang", "sglang")
READY = (200, 401, 403)
"""Statuses of a running server; some need an API key."""
WARMING_UP = 503
"""Status of ``/health`` until the server's own first requests have ended."""
Status = tuple[int, ...]
"""Parent, then group, session and start time, which distinguish a process from a later one with the same id."""


def execute_shell_command(command: str) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, without a shell; it writes to this process's output.

    Line continuations with a backslash are accepted, and ``python`` is this interpreter.
    """
    arguments = shlex.split(command.replace("\\\n", " "))
    if not arguments:
        raise ValueError("the command is empty")
    return _start(arguments)


def launch_server_cmd(
    command: str, host: str = "0.0.0.0", port: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server with ``--port`` added, by default a free one; return the process and the port.

    The server listens at the command's own ``--host``; ``host`` is the address on which the port must be free.
    """
    return launch_server(shlex.split(command.replace("\\\n", " ")), host, port)


def launch_server(
    arguments: Sequence[str], host: str = "0.0.0.0", port: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server as ``launch_server_cmd`` does, from a list of arguments."""
    if not arguments:
        raise ValueError("the command is empty")
    chosen = free_port(host) if port is None else port
    return _start([*arguments, "--port", str(chosen)]), chosen


def wait_for_server(
    base_url: str,
    timeout: float | None = None,
    process: subprocess.Popen[bytes] | None = None,
    api_key: str | None = None,
) -> None:
    """Wait until ``/v1/models`` answers and ``/health`` says that the server has warmed up.

    Raises ``TimeoutError`` after ``timeout`` seconds, and ``RuntimeError`` if ``process`` ends.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    url = base_url.rstrip("/")
    with httpx.Client(headers=bearer(api_key), timeout=5.0) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                is_up = client.get(f"{url}/v1/models").status_code in READY
                if is_up and client.get(f"{url}/health").status_code != WARMING_UP:
                    return
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode} before it was ready; see its output")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"no server at {base_url} within {timeout} s")
            time.sleep(POLL_SECONDS)


def terminate_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and all processes that it started; those that do not end are killed."""
    family = _descendants(process.pid)
    is_leader = process.poll() is None and hasattr(os, "getpgid") and os.getpgid(process.pid) == process.pid
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if is_leader:
            os.killpg(process.pid, signal.SIGKILL)
    for pid, started in family.items():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _status(pid)[1:] == started:
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    first, *options = arguments
    if first in ("python", "python3"):
        first = sys.executable
        if options[:1] == ["-m"] and options[1:2] and options[1].split(".")[0] in OWN_PACKAGES:
            options.insert(0, "-P")  # the current folder may be a checkpoint, whose code must not run
    return subprocess.Popen([first, *options], stdin=subprocess.DEVNULL, start_new_session=True)


def free_port(host: str, ports: tuple[int, int] = PORTS) -> int:
    """Return a port that is free on ``host``: one of the range ``ports``, or any other where those are taken."""
    generator = random.SystemRandom()  # the default generator may be seeded alike in several processes
    for _ in range(ATTEMPTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = generator.randrange(*ports)
            probe.bind((host, port))
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = int(probe.getsockname()[1])
    return port


def _status(pid: int) -> Status:
    """Return the status of a process; empty if it does not exist, or there is no ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ()
    return tuple(int(fields[index]) for index in (1, 2, 3, 19))


def _descendants(pid: int) -> dict[int, Status]:
    """Return the processes that ``pid`` started, directly or indirectly."""
    known = {int(path.name): _status(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    descendants: dict[int, Status] = {}
    parents = {pid}
    while parents:
        children = {
            child for child, status in known.items() if status and status[0] in parents and child not in descendants
        }
        descendants.update({child: known[child][1:] for child in children})
        parents = children
    return descendants
