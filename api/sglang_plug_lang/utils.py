"""Helpers for documents and scripts: start a server, wait for it, end it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx

from .backends.http import bearer, certificates
from .images import content_of_url, image_bytes, image_size
from .state import ProgramState

__all__ = [
    "HttpResponse",
    "download_and_cache_file",
    "dump_state_text",
    "encode_image_base64",
    "execute_shell_command",
    "http_request",
    "is_in_ci",
    "launch_server_cmd",
    "load_image",
    "print_highlight",
    "read_jsonl",
    "terminate_process",
    "wait_for_server",
]

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


def is_in_ci() -> bool:
    """Return True in continuous integration, where services set the environment variable ``CI``."""
    return os.environ.get("CI", "").strip().lower() not in ("", "0", "false", "no")


def print_highlight(content: object) -> None:
    """Print in bold on a terminal, plainly elsewhere."""
    print(f"\033[1m{content}\033[0m" if sys.stdout.isatty() else content, flush=True)


def load_image(source: str | bytes | Path) -> tuple[bytes, tuple[int, int] | None]:
    """Return the bytes of an image (from a URL, a file, a data URL, or bytes) and its width and height.

    The size is ``None`` for formats other than PNG, GIF and JPEG. Raises ``OSError`` if the image cannot be read.
    """
    content = image_bytes(source)
    return content, image_size(content)


def encode_image_base64(source: str | bytes | Path) -> str:
    """Return an image (from a URL, a file, a data URL, or bytes) as base64."""
    return base64.b64encode(image_bytes(source)).decode("ascii")


def download_and_cache_file(url: str, filename: str | Path | None = None) -> str:
    """Return the name of a file with the content of a URL, which is downloaded if the file does not exist.

    The default file is in the user's cache. Raises ``OSError`` if the content cannot be downloaded or written.
    """
    if filename is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = Path(url.partition("?")[0]).name
        filename = cache / "sglang-plug" / "downloads" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    path = Path(filename)
    if not path.is_file():
        content = content_of_url(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as unfinished:
            unfinished.write(content)
        Path(unfinished.name).replace(path)  # several programs may download it at the same time
    return str(path)


def read_jsonl(filename: str | Path) -> Iterator[Any]:
    """Yield the values of a file with one JSON value in each line; lines that begin with ``#`` are comments."""
    with Path(filename).open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield json.loads(line)


def dump_state_text(filename: str | Path, states: Sequence[object], mode: Literal["w", "a"] = "w") -> None:
    """Write the texts of states (or other values) to a file, each between rules of ``=``."""
    with Path(filename).open(mode, encoding="utf-8") as file:
        for index, state in enumerate(states):
            text = state.text() if isinstance(state, ProgramState) else str(state)
            file.write(f"{'=' * 40} {index} {'=' * 40}\n{text}\n{'=' * 80}\n\n")


class HttpResponse:
    """Response of ``http_request``."""

    def __init__(self, response: httpx.Response) -> None:
        self.status_code, self.text = response.status_code, response.text

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.text)


def http_request(
    url: str,
    json: Any = None,
    api_key: str | None = None,
    verify: bool | str | None = None,
    method: str | None = None,
) -> HttpResponse:
    """Send a request, by default ``POST`` if there is a body; return also responses with an error status."""
    chosen = method or ("GET" if json is None else "POST")
    with httpx.Client(headers=bearer(api_key), verify=certificates(verify), timeout=None) as client:
        return HttpResponse(client.request(chosen, url, json=json))


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


Status = tuple[int, ...]
"""Parent, then group, session and start time, which distinguish a process from a later one with the same id."""


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
