"""Stop signals at every stage of a server's life: to the API process or to the process group, once or twice.

Service managers and terminals signal the whole group. Whatever the moment is, the server ends, and nothing is
left of it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from .replaying import replayed
from .servers import until

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}, "stream": True}
BLOCKED_STEP = """
    import os
    import time
    from pathlib import Path

    from sglang_plug import SchedulePolicy, hookimpl
    from sglang_plug.plugins.specs import ScheduleSpec

    @hookimpl
    def register_schedule_policies():
        yield ScheduleSpec(name="blocked", target=f"{__name__}:Blocked")

    class Blocked(SchedulePolicy):
        def order(self, waiting, match):
            Path(__file__).with_suffix(".reached").touch()
            while not Path(__file__).with_suffix(".go").exists():
                time.sleep(0.02)
            return waiting
"""
HANGING_OBSERVER = """
    import threading

    from sglang_plug import Observer, hookimpl
    from sglang_plug.plugins.specs import ObserverSpec

    @hookimpl
    def register_observers():
        yield ObserverSpec(name="hanging", target=f"{__name__}:Hanging")

    class Hanging(Observer):
        async def on_stop(self):
            threading.Event().wait()  # blocks the event loop
"""

WHOM = pytest.mark.parametrize("whom", ["process", "group"])
TIMES = pytest.mark.parametrize("times", [1, 2])


def stop(server: Any, whom: str, times: int, number: signal.Signals = signal.SIGTERM) -> None:
    for _ in range(times):
        if whom == "group":
            os.killpg(server.process.pid, number)
        else:
            server.signal(number)


def ended(server: Any, code: int = 0) -> None:
    """Check that the server ended in order, and left no process."""
    assert server.exit_code() == code, server.log
    server.wait_gone()
    assert "Traceback" not in server.log
    assert "ended by force" not in server.log


def plugin(folder: Path, text: str) -> Path:
    file = folder / "told.py"
    file.write_text("from __future__ import annotations\n" + textwrap.dedent(text))
    return file


@WHOM
@TIMES
def test_while_it_starts(whom: str, times: int, launch: Any) -> None:
    server = launch.begin()
    until(server.engine_pids, "the engine is started")
    stop(server, whom, times)
    ended(server, 128 + signal.SIGTERM)


def test_an_interrupt_while_it_starts(launch: Any) -> None:
    server = launch.begin()
    until(server.engine_pids, "the engine is started")
    stop(server, "group", 1, signal.SIGINT)
    ended(server, 128 + signal.SIGINT)


@pytest.mark.parametrize(("whom", "times"), [("group", 1), ("process", 2)])
def test_while_it_warms_up(whom: str, times: int, launch: Any, tmp_path: Path) -> None:
    file = plugin(tmp_path, BLOCKED_STEP)
    server = launch.begin("--plugin", str(file), "--schedule-policy", "blocked")
    until(file.with_suffix(".reached").exists, "the warm-up request is in the engine")
    stop(server, whom, times)
    until(lambda: "Shutting down" in server.log, "the server is told")
    file.with_suffix(".go").touch()
    ended(server)


def test_while_it_warms_up_and_the_engine_is_gone(launch: Any, tmp_path: Path) -> None:
    """A server whose engine dies during the warm-up stops at a signal without waiting for the warm-up request."""
    file = plugin(tmp_path, BLOCKED_STEP)
    server = launch.begin("--plugin", str(file), "--schedule-policy", "blocked")
    until(file.with_suffix(".reached").exists, "the warm-up request is in the engine")
    os.kill(server.engine_pid, signal.SIGKILL)
    stop(server, "process", 1)
    assert server.exit_code() in (0, 1)  # either the signal or the death of the engine comes first
    server.wait_gone()
    assert "Traceback" not in server.log


@pytest.mark.parametrize(("whom", "times"), [("group", 1), ("process", 2)])
def test_while_it_is_idle(whom: str, times: int, launch: Any) -> None:
    server = launch()
    stop(server, whom, times)
    ended(server)


@replayed
def test_a_signal_to_the_group_lets_streams_end(launch: Any) -> None:
    server = launch("--drain-timeout", "600", "--send-timeout", "600")
    with server.client.stream("POST", "/generate", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        stop(server, "group", 1)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["meta_info"]["completion_tokens"] == 300
    ended(server)


def test_two_signals_to_the_group_under_load(launch: Any) -> None:
    server = launch("--drain-timeout", "600")
    body = {**LONG, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    with server.client.stream("POST", "/generate", json=body) as stream:
        next(stream.iter_lines())
        stop(server, "group", 2)
        ended(server)


@pytest.mark.parametrize(("whom", "times"), [("group", 1), ("process", 2)])
def test_while_a_batch_runs(whom: str, times: int, launch: Any, tmp_path: Path) -> None:
    server = launch("--file-storage-path", str(tmp_path / "storage"), "--max-running-requests", "2")
    body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body} for number in range(8)
    ]
    content = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    file = server.post("/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"}).json()
    batch = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    assert server.post("/v1/batches", batch).status_code == 200
    until(lambda: server.load()[0] > 0, "lines run")
    stop(server, whom, times)
    ended(server)


def test_what_does_not_end_is_ended_by_force(launch: Any, tmp_path: Path) -> None:
    server = launch("--plugin", str(plugin(tmp_path, HANGING_OBSERVER)), "--drain-timeout", "0")
    stop(server, "process", 1)
    assert server.exit_code() == 1
    server.wait_gone()
    assert "ended by force" in server.log
    assert "in on_stop" in server.log  # the logged stacks show the blocking call
