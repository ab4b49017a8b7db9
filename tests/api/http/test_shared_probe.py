"""Concurrent health probes share one request to the model."""

from __future__ import annotations

import asyncio

import pytest

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.shared_probe import REUSE_SECONDS, SharedProbe


class Model:
    """A model whose answers wait for the event ``answers``."""

    def __init__(self) -> None:
        self.calls, self.now = 0, 0.0
        self.answers = asyncio.Event()
        self.failure: Exception | None = None
        self.probe = SharedProbe(self.ask, lambda: self.now)

    async def ask(self) -> None:
        self.calls += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure


async def test_callers_share_the_probe_that_is_running() -> None:
    model = Model()
    callers = [asyncio.create_task(model.probe.check()) for _ in range(300)]
    await asyncio.sleep(0)
    model.now += 100 * REUSE_SECONDS
    callers += [asyncio.create_task(model.probe.check()) for _ in range(300)]
    await asyncio.sleep(0)
    model.answers.set()
    await asyncio.gather(*callers)
    assert model.calls == 1


@pytest.mark.parametrize("failure", [None, RequestError("full", 503), ApiError("slow", 503)])
async def test_a_result_is_reused_for_a_while_and_then_found_anew(failure: Exception | None) -> None:
    model = Model()
    model.answers.set()
    model.failure = failure
    for seconds, calls in (
        (0.0, 1),
        (REUSE_SECONDS / 2, 1),
        (REUSE_SECONDS / 2, 2),
        (REUSE_SECONDS / 2, 2),
        (REUSE_SECONDS, 3),
    ):
        model.now += seconds
        if failure is None:
            await model.probe.check()
        else:
            with pytest.raises(ApiError, match=str(failure)) as caught:
                await model.probe.check()
            assert caught.value.status == 503
        assert model.calls == calls


async def test_a_caller_that_leaves_ends_the_probe_for_nobody_and_starts_no_further_one() -> None:
    model = Model()
    first = asyncio.create_task(model.probe.check())
    await asyncio.sleep(0)
    second = asyncio.create_task(model.probe.check())
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    model.answers.set()
    await second
    assert model.calls == 1


async def test_the_server_s_end_is_the_probe_s_end() -> None:
    model = Model()
    async with model.probe.lifespan(None):
        caller = asyncio.create_task(model.probe.check())
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await caller
