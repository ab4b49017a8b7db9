"""Components of both processes are started and stopped once, whatever the reason for the end of the server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .servers import NO_GRAMMARS, Launcher, refused_start, until

PLUGIN = """
from __future__ import annotations

import os
import time
from pathlib import Path

from sglang_plug import Observer, ObserverSpec, RouteSpec, SchedulePolicy, ScheduleSpec, hookimpl
from sglang_plug.plugins.specs import LogitsProcessorSpec

CALLS = Path(__file__).with_suffix(".calls")


def note(name, event):
    with CALLS.open("a") as file:
        file.write(f"{name} {event} {os.getpid()}\\n")


@hookimpl
def register_schedule_policies():
    yield ScheduleSpec(name="held", target=f"{__name__}:Held")


@hookimpl
def register_observers():
    yield ObserverSpec(name="watching", target=f"{__name__}:Watching")


@hookimpl
def register_routes():
    yield RouteSpec(name="stored", target=f"{__name__}:build")


class Held(SchedulePolicy):
    def order(self, waiting, match):
        return list(waiting)

    def on_start(self, info):
        FAIL_SCHEDULE
        note("schedule", f"start-{info['tp_size']}")

    def on_stop(self):
        note("schedule", "stop")


class Watching(Observer):
    def on_start(self, info):
        note("observer", f"start-{info['served_model_name']}")

    def on_stop(self):
        note("observer", "stop")
        raise OSError("the collector is gone")


def build(engine):
    from fastapi import APIRouter

    from sglang_plug_api.plugin import RouteGroup

    router, store = APIRouter(), {}

    async def start(info):
        FAIL_ROUTE
        store["model"] = info["served_model_name"]
        note("route", "start")

    async def stop():
        note("route", "stop")

    router.add_api_route("/stored", lambda: store)
    return RouteGroup(router=router, on_start=start, on_stop=stop)
"""
LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True}
STARTS, STOPS = ["schedule start-1", "observer start-mine", "route start"], ["route stop", "observer stop"]


def plugin(folder: Path, *, schedule: str = "pass", route: str = "pass") -> Path:
    file = folder / "holding.py"
    file.write_text(PLUGIN.replace("FAIL_SCHEDULE", schedule).replace("FAIL_ROUTE", route))
    return file


def calls(folder: Path) -> list[str]:
    """Return the calls that the plugin recorded so far, without the process ids."""
    file = folder / "holding.calls"
    return [line.rpartition(" ")[0] for line in file.read_text().splitlines()] if file.exists() else []


def flags(file: Path) -> tuple[str, ...]:
    named = ("--schedule-policy", "held", "--served-model-name", "mine")
    return "--plugin", str(file), *named, "--drain-timeout", "0", *NO_GRAMMARS


def test_a_signal_stops_both_processes_in_order(launch: Launcher, tmp_path: Path) -> None:
    server = launch(*flags(plugin(tmp_path)))
    assert calls(tmp_path) == STARTS
    assert server.get("/stored").json() == {"model": "mine"}
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()
    assert calls(tmp_path) == [*STARTS, *STOPS, "schedule stop"]
    assert "observer 'watching' from" in server.log and "failed in on_stop: OSError: the collector" in server.log


def test_the_server_stops_what_it_holds_though_its_engine_died(launch: Launcher, tmp_path: Path) -> None:
    server = launch(*flags(plugin(tmp_path)))
    os.kill(server.engine_pid, signal.SIGKILL)
    assert server.exit_code() == 1
    server.wait_gone()
    assert calls(tmp_path) == [*STARTS, *STOPS]


def test_the_engine_stops_what_it_holds_though_its_server_died(launch: Launcher, tmp_path: Path) -> None:
    server = launch(*flags(plugin(tmp_path)))
    assert server.engine_pid != server.process.pid
    with server.client.stream("POST", "/generate", json=LONG) as stream:
        next(stream.iter_lines())
        server.signal(signal.SIGKILL)
        assert server.exit_code() == -signal.SIGKILL
    server.wait_gone()
    assert calls(tmp_path) == [*STARTS, "schedule stop"]


def test_a_new_engine_starts_its_own_components(launch: Launcher, tmp_path: Path) -> None:
    server = launch(*flags(plugin(tmp_path)), "--engine-restart")
    os.kill(server.engine_pid, signal.SIGKILL)
    until(lambda: calls(tmp_path).count(STARTS[0]) == 2, "the engine is started again")
    until(lambda: server.get("/health").status_code == 200, "it serves again")
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()
    assert calls(tmp_path) == [*STARTS, STARTS[0], *STOPS, "schedule stop"]


@pytest.mark.parametrize(
    ("which", "message", "called"),
    [
        ("schedule", "schedule 'held' from {file} ", []),
        ("route", "route 'stored' from {file} ", [*STARTS[:2], "observer stop", "schedule stop"]),
    ],
)
def test_a_failed_start_names_the_component(which: str, message: str, called: list[str], tmp_path: Path) -> None:
    file = plugin(tmp_path, **{which: "raise OSError('the port is taken')"})
    last = refused_start(*flags(file)).strip().splitlines()[-1]
    assert message.format(file=file) in last and "failed in on_start: OSError: the port is taken" in last
    assert calls(tmp_path) == called


def test_an_offline_engine_starts_and_stops_all_of_them(tmp_path: Path) -> None:
    from sglang_plug import PluginOptions
    from sglang_plug_api import Engine

    file = plugin(tmp_path)
    options = PluginOptions(files=(str(file),))
    with Engine(plugins=options, schedule_policy="held", served_model_name="mine", max_total_tokens=256):
        assert calls(tmp_path) == STARTS[:2]  # there are no routes
    assert calls(tmp_path) == [*STARTS[:2], "observer stop", "schedule stop"]
