"""Servers for tests: ``sglang-plug serve`` in a separate process, or in a thread of the process of the tests."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx

from sglang_plug import Plugins
from sglang_plug.__main__ import USAGE_ERROR, main
from sglang_plug.plugins.flags import plugin_flags, read_plugin_flags
from sglang_plug.system.command_line import Parser
from sglang_plug_api.commands.serve import ServeCommand
from sglang_plug_api.lifecycle.server import serve
from sglang_plug_api.lifecycle.shutdown import Shutdown

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
READY = " at http://"
NO_GRAMMARS = ("--grammar-backend", "none")
"""Options of servers without constrained outputs, which start in half the time without the process for grammars."""
TIMEOUT = 240.0
"""Maximum seconds to wait for an expected state."""
LOG_SHOWN = 3000
STDERR = 2
ENGINE = b"sglang_plug.engine.processes.worker"
"""Part of the command line of an engine's process."""


def until(holds: Callable[[], Any], description: str) -> Any:
    """Poll ``holds`` until it returns a true value, and return that."""
    deadline = time.monotonic() + TIMEOUT
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"never happened: {description}"
        time.sleep(0.02)
    return answer


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class HttpServer:
    """A client of a server under test: HTTP requests, and checks of the server's state.

    Args:
        flags: options that the server was started with.
    """

    def __init__(self, flags: tuple[str, ...]) -> None:
        self.flags, self.url = flags, ""
        self.client = httpx.Client(timeout=TIMEOUT)

    def _serves_at(self, ready: str) -> None:
        """Take the address from the ready line."""
        self.url = ready.split(" at ")[1].split()[0]
        self.client.base_url = httpx.URL(self.url)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, **more: Any) -> httpx.Response:
        """Send a GET request."""
        return self.client.get(path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Send a POST request with a JSON body."""
        return self.client.post(path, **more) if body is None else self.client.post(path, json=body, **more)

    def generate(self, body: Mapping[str, Any]) -> Any:
        """Return the answer to ``POST /generate``, which must succeed."""
        answer = self.post("/generate", dict(body))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """Return the events of a stream without the final ``[DONE]``, which must be there."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = answer.text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def info(self) -> dict[str, Any]:
        """Return the answer of ``/server_info``."""
        return self.get("/server_info").json()

    def load(self) -> tuple[int, int]:
        """Return the numbers of running and waiting sequences."""
        info = self.info()
        return info["running"], info["waiting"]

    def is_whole(self) -> bool:
        """Return True if no sequence runs or waits, and every KV slot is free or cached."""
        info = self.info()
        slots = info["slots"]
        return (info["running"], info["waiting"], slots["free"] + slots["cached"]) == (0, 0, slots["capacity"])

    def wait_whole(self) -> None:
        """Wait until no sequence runs or waits, and every KV slot is free or cached."""
        until(self.is_whole, "no requests, and free + cached slots == capacity")


class Server(HttpServer):
    """A server in a separate process group."""

    def __init__(self, flags: tuple[str, ...], log: Path, folder: Path | None = None) -> None:
        super().__init__(flags)
        self.log_path = log
        module = (sys.executable, "-m", "sglang_plug")
        program = module if folder is None else (str(Path(sys.executable).with_name("sglang-plug")),)
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [*program, "serve", *flags],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **ENVIRONMENT, "XDG_STATE_HOME": str(log.with_suffix(""))},
            start_new_session=True,
        )

    def wait_ready(self) -> Server:
        """Wait for the ready line and take the address from it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if READY in line:
                self._serves_at(line)
                return self
        raise AssertionError(f"the server ended with {self.process.wait()} instead of getting ready:\n{self.log}")

    @property
    def log(self) -> str:
        """The stderr of the server so far."""
        return self.log_path.read_text(errors="replace")

    def members(self) -> list[int]:
        """Return the ids of the live processes in the process group of the server."""
        pids = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    pids.append(int(stat.parent.name))
        return pids

    def wait_gone(self) -> None:
        """Wait until no process in the process group of the server is alive."""
        until(lambda: not self.members(), "no process left")

    def engine_pids(self) -> list[int]:
        """Return the process ids of the live engines of the server."""
        return [pid for pid in self.members() if ENGINE in command_of(pid)]

    @property
    def engine_pid(self) -> int:
        """The process id of the only engine."""
        (pid,) = self.engine_pids()
        return pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the API process alone."""
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait until the API process has ended, and return its exit status."""
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        """Terminate the server, whatever state it is in, and kill what is left of its process group."""
        if self._log.closed:
            return
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


class ProcessLog(logging.Handler):
    """Handler that keeps the log of this process while it is open, at the level that ``serve`` would set.

    If several handlers are open, the one that was opened last has to be closed first.
    """

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
        self.lines: list[str] = []
        root = logging.getLogger()
        self._level_before = root.level
        root.setLevel(min(root.level, level))
        root.addHandler(self)

    @property
    def text(self) -> str:
        """The formatted records, one on each line."""
        return "".join(f"{line}\n" for line in self.lines)

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and keep the text."""
        self.lines.append(self.format(record))

    def close(self) -> None:
        """Remove the handler from the root logger, and restore the logger's level."""
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
            root.setLevel(self._level_before)
        super().close()


class ThreadServer(HttpServer):
    """A server in a thread of this process, engine included, which starts in a tenth of the time.

    It is for tests that do not depend on processes and signals. Raises ``AssertionError`` if the server ends before it
    is ready.
    """

    def __init__(self, flags: tuple[str, ...]) -> None:
        super().__init__(flags)
        level = flags[flags.index("--log-level") + 1] if "--log-level" in flags else "info"
        self._log = ProcessLog(logging.getLevelNamesMapping()[level.upper()])
        self._shutdown, self._ready = InProcessShutdown(), threading.Event()
        self.ready_text = ""
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._thread.start()
        assert self._ready.wait(TIMEOUT) and self.url, f"the server with {' '.join(flags)} did not get ready"
        self.log_of_start = self._log.text
        """The log until the server was ready."""

    def _serve(self) -> None:
        def announce(text: str) -> None:
            self.ready_text = text
            self._serves_at(text)
            self._ready.set()

        try:
            options, chosen, rest = read_plugin_flags(["--deployment", "thread", *self.flags])
            plugins = Plugins.discover(options)
            command = ServeCommand(partial(serve, shutdown=self._shutdown, announce=announce))
            parser = Parser(parents=[plugin_flags()], conflict_handler="resolve")
            command.arguments(parser, plugins)
            command.run(parser.parse_args(rest, chosen), plugins)
        finally:
            self._ready.set()

    @property
    def log(self) -> str:
        """The log of this process since the start of the server, including records of other servers in the process."""
        return self._log.text

    def stop(self) -> None:
        """Ask the server to stop, as SIGTERM does."""
        self._shutdown.stop()

    def close(self) -> None:
        """Stop the server, and collect the garbage that it leaves."""
        self._log.close()
        if not self._thread.is_alive():
            return
        self.client.close()
        self._shutdown.stop()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the server does not end"
        gc.collect()


class InProcessShutdown(Shutdown):
    """A shutdown without a deadline: ending the process by force would end the tests."""

    def expect_end(self, seconds: float = 0.0) -> None:
        """Do nothing."""


def engines() -> set[int]:
    """Return the ids of the live engine processes that this process has started."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(") ")[2].split()[:2]
            pid = int(stat.parent.name)
            if int(parent) == os.getpid() and state != "Z" and ENGINE in command_of(pid):
                pids.add(pid)
    return pids


@contextlib.contextmanager
def stderr_into(file: IO[str]) -> Iterator[None]:
    """Redirect the stderr of this process, and of processes that it starts, into a file."""
    own = os.dup(STDERR)
    os.dup2(file.fileno(), STDERR)
    try:
        with contextlib.redirect_stderr(file):
            yield
    finally:
        os.dup2(own, STDERR)
        os.close(own)


def failed_start(code: int, *flags: str) -> str:
    """Run ``sglang-plug serve`` in this process, and return its log and stderr; it must end with ``code``.

    Unless the flags say otherwise, the engine runs in a separate process, which must have ended.
    """
    before = engines()
    with contextlib.closing(ProcessLog(logging.INFO)) as log, tempfile.TemporaryFile("w+", buffering=1) as written:
        with stderr_into(written):
            ended_with = main(["serve", *with_defaults(flags)])
        written.seek(0)
        output = log.text + written.read()
    assert ended_with == code, output
    assert engines() <= before, "the engine is left"
    return output


def refused_start(*flags: str) -> str:
    """Return the output of a start that fails because of an error of the user; see ``failed_start``."""
    return failed_start(USAGE_ERROR, *flags)


def with_defaults(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Add a free port and a small KV pool, unless flags say otherwise."""
    if "--port" not in flags:
        flags = (*flags, "--port", "0")
    if not any(flag.startswith("--max-total-tokens") for flag in flags):
        flags = (*flags, "--max-total-tokens", "32768")
    return flags


class Launcher:
    """Starts servers, and closes all of them at the end.

    Args:
        folder: the folder for logs and stored files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: list[Server] = []
        self._threads: list[ThreadServer] = []

    def begin(self, *flags: str, folder: Path | None = None) -> Server:
        """Start a server without waiting for it.

        With ``folder`` the installed program is run in that folder.
        """
        log = self._folder / f"server-{len(self.servers)}.log"
        self.servers.append(Server(with_defaults(flags), log, folder))
        return self.servers[-1]

    def __call__(self, *flags: str, folder: Path | None = None) -> Server:
        """Start a server, and wait until it is ready."""
        return self.begin(*flags, folder=folder).wait_ready()

    def in_thread(self, *flags: str) -> ThreadServer:
        """Start a server in a thread of this process, and wait until it is ready."""
        if "--file-storage-path" not in flags:
            flags = (*flags, "--file-storage-path", str(self._folder / f"storage-{len(self._threads)}"))
        self._threads.append(ThreadServer(with_defaults(flags)))
        return self._threads[-1]

    def close(self) -> None:
        """Close every server."""
        for server in reversed([*self.servers, *self._threads]):
            server.close()
