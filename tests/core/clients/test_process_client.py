"""The client of an engine in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, Plugins, Request, RequestError, SamplingParams
from sglang_plug.clients.engine_process import POLL, HeartbeatMonitor
from sglang_plug.clients.process_client import ProcessClient
from sglang_plug.config import CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from sglang_plug.contracts.serving.engine_client import EngineError

pytestmark = pytest.mark.whole_engine


def config(path: Any, **options: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu"), cache=CacheOptions(max_total_tokens=512), **options
    )


def request(id: str, **params: Any) -> Request:
    return Request(id=id, tokens=(5, 6, 7), params=SamplingParams(**{"temperature": 0.0, **params}))


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def wait_until(holds: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_it_serves_refuses_and_ends(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    model = tiny_model("llama-3.2-1b")
    engine = serve(config(model.path), ProcessClient)
    assert engine.info["architecture"] == "LlamaForCausalLM"
    (output,) = engine.outputs([request("a", max_new_tokens=6)])
    assert list(output.tokens) == model.greedy([5, 6, 7], 6)
    with pytest.raises(RequestError, match="vocabulary"):
        engine.outputs([Request(id="b", tokens=(10**6,))])
    accounts = engine.control("check")
    assert accounts["free"] + accounts["cached"] == accounts["capacity"]
    pid = engine.client.pid
    engine.close()
    assert is_gone(pid)
    engine.runner = asyncio.Runner()  # the fixture closes once more: that must be harmless


def test_a_request_in_flight_can_be_left_after_the_engine_was_closed(
    tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    engine = serve(config(tiny_model("llama-3.2-1b").path), ProcessClient)

    async def leave() -> None:
        outputs = engine.client.submit(request("a", max_new_tokens=400))
        await anext(outputs)
        await engine.client.close()
        await outputs.aclose()
        with pytest.raises(EngineError, match="was closed"):
            await anext(engine.client.submit(request("b")))

    engine.runner.run(leave())


def test_a_killed_engine_fails_everybody_with_the_cause(
    tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    engine = serve(config(tiny_model("llama-3.2-1b").path), ProcessClient)

    async def stream() -> None:
        async for _ in engine.client.submit(request("a", max_new_tokens=400)):
            os.kill(engine.client.pid, signal.SIGKILL)

    with pytest.raises(EngineError, match="signal 9"):
        engine.runner.run(stream())
    assert "signal 9" in engine.client.failure
    with pytest.raises(EngineError):
        engine.outputs([request("b")])


def test_a_wrong_configuration_is_one_line(tmp_path: Path, serve: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="no such folder") as caught:
        serve(config(tmp_path / "nothing"), ProcessClient)
    assert "\n" not in str(caught.value)


def test_the_engine_sees_the_same_plugins_or_refuses(tmp_path: Path, serve: Callable[..., Any]) -> None:
    file = tmp_path / "changing.py"
    file.write_text("from __future__ import annotations\n")
    options = PluginOptions(files=(str(file),))

    def client(config: EngineConfig, plugins: Plugins) -> ProcessClient:
        file.write_text("from __future__ import annotations\nCHANGED = True\n")
        return ProcessClient(config, plugins)

    with pytest.raises(ConfigError, match="other plugins than the server: changing"):
        serve(config("anything", plugins=options), client)


def test_the_engine_ends_with_its_parent(tiny_model: Callable[..., Any]) -> None:
    script = f"""
        import asyncio, os, signal
        from sglang_plug import EngineConfig, Plugins
        from sglang_plug.config import ModelOptions
        from sglang_plug.clients.process_client import ProcessClient

        async def main():
            config = EngineConfig(model=ModelOptions(path={str(tiny_model("llama-3.2-1b").path)!r}, device="cpu"))
            client = ProcessClient(config, Plugins.discover())
            await client.start()
            print(client.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, timeout=240)
    pid = int(done.stdout)
    wait_until(lambda: is_gone(pid))


def test_a_heartbeat_is_expected_from_the_first_one_on(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    monitor = HeartbeatMonitor(file, 3 * POLL)
    assert not any(monitor.is_expired() for _ in range(10))
    file.touch()
    assert [monitor.is_expired() for _ in range(5)] == [False] * 4 + [True]
    os.utime(file, (1, 1))
    assert not monitor.is_expired()


def test_an_engine_that_lets_no_python_run_is_ended(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """A process stopped by SIGSTOP does not touch its heartbeat file, just like a process whose Python code is
    blocked."""
    engine = serve(
        config(tiny_model("llama-3.2-1b").path, schedule=ScheduleOptions(watchdog_timeout=2.0)), ProcessClient
    )
    pid = engine.client.pid
    os.kill(pid, signal.SIGSTOP)

    longest, reason = engine.runner.run(longest_heartbeat_gap(engine.client, pid))
    assert longest > 1.0
    assert "keeps all of Python waiting" in reason


async def longest_heartbeat_gap(client: ProcessClient, pid: int) -> tuple[float, str]:
    """Wait for the end of an engine; return the longest time without a heartbeat in seconds, and the reason of its
    failure."""
    failing, longest = asyncio.ensure_future(client.wait_failed()), 0.0
    while not failing.done() or not is_gone(pid):
        longest = max(longest, client.heartbeat_age)
        await asyncio.sleep(0.02)
    return longest, failing.result()


UNREADABLE = """
from dataclasses import replace

from sglang_plug import OutputPhase, StepExtension, StepExtensionSpec, hookimpl

@hookimpl
def register_step_extensions():
    yield StepExtensionSpec(name="numbers", target=f"{__name__}:build")

class Numbers(StepExtension, OutputPhase):
    def output(self, sequence, output):
        return replace(output, retractions="many")

def build(context):
    return Numbers()
"""


def test_a_message_that_cannot_be_read_fails_the_requests(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    plugin = tmp_path / "numbers_plugin.py"
    plugin.write_text(UNREADABLE)
    options = PluginOptions(files=(str(plugin),))
    engine = serve(config(tiny_model("llama-3.2-1b").path, plugins=options), ProcessClient)
    with pytest.raises(EngineError, match=r"could not be handled: .*Expected `int`, got `str`"):
        engine.outputs([request("a", max_new_tokens=4)])
