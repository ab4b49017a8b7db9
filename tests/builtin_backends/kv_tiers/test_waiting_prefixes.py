"""Loaded prefixes of requests that cannot run yet do not keep other requests from running."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from sglang_plug import EngineConfig, Output, Plugins, Request
from sglang_plug.clients.pending import merge
from sglang_plug.config import CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from sglang_plug.engine.messages.api_messages import Control, FromEngine, Reply, StepOutputs, Submit, ToEngine
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from tests.builtin_backends.kv_tiers.engine_requests import BLOCK, prompt, request

pytestmark = pytest.mark.whole_engine

LENGTH = 449
"""Number of tokens in a prompt; one MiB has room for three prompts."""
LOAD_SECONDS = 2.0
HELD_SECONDS = 0.05
"""Seconds between two steps while a request is held; all steps together take longer than ``LOAD_SECONDS``."""


class Engine:
    """An engine with a host KV store, whose steps the test runs.

    Args:
        path: the model.
        load: the setting ``kv-tiers.load``.
        schedule: decides which requests run.
        settings: further settings of ``kv-tiers``.
    """

    def __init__(self, path: str, load: str, schedule: ScheduleOptions, **settings: Any) -> None:
        tiers = {"block_tokens": BLOCK, "load": load, "load_seconds": LOAD_SECONDS, "buffer_mib": 1, **settings}
        config = EngineConfig(
            model=ModelOptions(path=path, device="cpu"),
            cache=CacheOptions(max_total_tokens=6000, kv_stores=("host",)),
            schedule=schedule,
            plugins=PluginOptions(settings={"kv-tiers": tiers}),
        )
        self.outputs: dict[str, Output] = {}
        self._messages: list[ToEngine] = []
        self._replies: list[Reply] = []
        self.loop = build_engine(config, Plugins.discover(config.plugins), self, self.hear, Heartbeat())

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return the messages of the engine's inbox."""
        taken, self._messages = self._messages, []
        return taken

    def hear(self, message: FromEngine) -> None:
        """Receive the messages that the engine sends."""
        if isinstance(message, Reply):
            self._replies.append(message)
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            before = self.outputs.get(output.id)
            self.outputs[output.id] = output if before is None else merge(before, output)

    def submit(self, *requests: Request) -> None:
        """Submit requests in the given order."""
        self._messages += map(Submit, requests)
        self.loop.step()

    def control(self, name: str, **arguments: Any) -> Any:
        """Return the answer to a control call."""
        self._messages.append(Control(0, name, arguments))
        while not self._replies:
            self.loop.step()
        return self._replies.pop().value

    def has_ended(self, id: str) -> bool:
        """Report whether a request has finished."""
        return id in self.outputs and self.outputs[id].finish is not None

    def steps_until(self, holds: Callable[[], bool], max_steps: int = 20_000) -> int:
        """Return the number of steps until ``holds`` is true; ``max_steps`` if it is not after so many."""
        for step in range(max_steps):
            if holds():
                return step
            self.loop.step()
            time.sleep(HELD_SECONDS if len(self.loop.held) else 0)
        return max_steps


@pytest.fixture
def start(tiny_model: Callable[[str], Any]) -> Iterator[Callable[..., Engine]]:
    """Return ``start(load, schedule, **settings)``, which starts an engine that is closed after the test."""
    engines = list[Engine]()

    def make(load: str, schedule: ScheduleOptions, **settings: Any) -> Engine:
        engines.append(Engine(str(tiny_model("llama-3.2-1b").path), load, schedule, **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.loop.close()


def fill_buffer(engine: Engine, **fields: Any) -> list[tuple[int, ...]]:
    """Run one request while four wait whose prefixes exceed the memory for loads; return the stored prompts."""
    prompts = [prompt(number, LENGTH) for number in range(5)]
    for number, tokens in enumerate(prompts):
        engine.submit(request(f"stored {number}", tokens, new=1))
        engine.steps_until(lambda number=number: engine.has_ended(f"stored {number}"))
    while engine.control("info")["kv_stores"]["queued_blocks"]:
        pass
    assert engine.control("flush_cache", stored=False)["success"]
    engine.submit(request("long", prompt(9, 8), new=490, **fields))
    engine.submit(*(request(f"x{number}", prompts[number], new=2, **fields) for number in range(4)))
    engine.steps_until(lambda: len(engine.loop.scheduler.waiting) >= 3)
    return prompts


@pytest.mark.parametrize("load", ["measured", "always"])
def test_a_request_of_another_caller_is_computed(start: Callable[..., Engine], load: str) -> None:
    engine = start(load, ScheduleOptions(max_running_per_caller=1))
    prompts = fill_buffer(engine, caller="x")
    engine.submit(request("y", prompts[4], new=2, caller="y"))
    engine.steps_until(lambda: engine.has_ended("y"))
    assert not engine.has_ended("long") and not engine.has_ended("x0")
    assert engine.outputs["y"].loaded_tokens == ()
    engine.steps_until(lambda: not engine.loop.busy)
    loaded = [tier for number in range(4) for tier, _ in engine.outputs[f"x{number}"].loaded_tokens]
    assert loaded == ["host"] * 4, "the last one is loaded once there is memory"


def test_a_request_of_a_higher_priority_is_served_first(start: Callable[..., Engine]) -> None:
    engine = start("measured", ScheduleOptions(max_running_requests=1, policy="priority"))
    prompts = fill_buffer(engine)
    engine.submit(request("y", prompts[4], new=2, priority=9))
    engine.steps_until(lambda: engine.has_ended("y"))
    assert not engine.has_ended("x0")


@pytest.mark.parametrize("evict", [False, True])
def test_tokens_that_are_evicted_before_the_request_runs_are_not_counted_twice(
    start: Callable[..., Engine], evict: bool
) -> None:
    engine = start("always", ScheduleOptions(), step_mib=0)
    tokens = prompt(1, 10 * BLOCK + 1)
    engine.submit(request("stored", tokens, new=1))
    engine.steps_until(lambda: engine.has_ended("stored"))
    while engine.control("info")["kv_stores"]["queued_blocks"]:
        pass
    assert engine.control("flush_cache", stored=False)["success"]
    engine.submit(request("long", prompt(2, 8), new=490))
    engine.submit(request("loads", tokens, new=2))
    allocator = engine.loop.scheduler.allocator
    engine.steps_until(lambda: allocator.cache.size >= 3 * BLOCK)  # one block in each step, as another request runs
    if evict:
        assert allocator.evict(allocator.pool.capacity) >= 3 * BLOCK
    engine.steps_until(lambda: engine.has_ended("loads"))
    output = engine.outputs["loads"]
    assert output.loaded_tokens == (("host", output.cached_tokens),) and output.cached_tokens == 10 * BLOCK
