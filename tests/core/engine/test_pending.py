from __future__ import annotations

import asyncio

import pytest

from sglang_plug import Finish, Output, Request, RequestError, SamplingParams
from sglang_plug.config import ConfigError
from sglang_plug.engine.client import EngineError
from sglang_plug.engine.messages import Abort, Control, Failed, News, Ready, Reply, Submit, ToEngine
from sglang_plug.engine.pending import Pending

REQUEST = Request(id="a", tokens=(1,), params=SamplingParams())


async def test_outputs_that_nobody_read_yet_are_merged() -> None:
    sent: list[ToEngine] = []
    pending = Pending(sent.append)
    stream = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert sent == [Submit(REQUEST)]
    pending.dispatch(News([Output(id="a", tokens=(5,), cached_tokens=3)]))
    pending.dispatch(News([Output(id="a", tokens=(6,)), Output(id="stranger", tokens=(9,))]))
    assert (await first).tokens == (5, 6)
    pending.dispatch(News([Output(id="a", tokens=(7,), finish=Finish("stop", matched=7))]))
    assert [output.tokens async for output in stream] == [(7,)]
    assert len(sent) == 1  # finished: nothing to abort


async def test_closing_the_stream_aborts() -> None:
    sent: list[ToEngine] = []
    pending = Pending(sent.append)
    stream = pending.submit(REQUEST)
    pending_first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    pending.dispatch(News([Output(id="a", tokens=(5,))]))
    await pending_first
    await stream.aclose()  # type: ignore[attr-defined]
    assert sent[-1] == Abort(("a",))


async def test_cancelling_a_waiting_reader_aborts() -> None:
    sent: list[ToEngine] = []
    pending = Pending(sent.append)

    async def read() -> None:
        async for _ in pending.submit(REQUEST):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent[-1] == Abort(("a",))


async def test_a_refusal_is_an_error_with_a_status() -> None:
    pending = Pending(lambda message: None)
    stream = pending.submit(REQUEST)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    pending.dispatch(News([Output(id="a", finish=Finish("error", message="full", status=503))]))
    with pytest.raises(RequestError, match="full") as caught:
        await task
    assert caught.value.status == 503


async def test_control_calls_are_told_apart() -> None:
    sent: list[ToEngine] = []
    pending = Pending(sent.append)
    calls = [asyncio.ensure_future(pending.control(name, {})) for name in ("one", "two")]
    await asyncio.sleep(0)
    numbers = {message.name: message.number for message in sent if isinstance(message, Control)}
    pending.dispatch(Reply(numbers["two"], 2))
    pending.dispatch(Reply(numbers["one"], error="no", status=400))
    assert await calls[1] == 2
    with pytest.raises(RequestError, match="no"):
        await calls[0]


async def test_a_dead_engine_fails_everybody() -> None:
    pending = Pending(lambda message: None)
    stream = asyncio.ensure_future(anext(pending.submit(REQUEST)))
    control = asyncio.ensure_future(pending.control("info", {}))
    waiter = asyncio.ensure_future(pending.wait_failed())
    await asyncio.sleep(0)
    pending.dispatch(Ready({}))
    pending.dispatch(Failed("it broke"))
    for task in (stream, control):
        with pytest.raises(EngineError, match="it broke"):
            await task
    assert await waiter == pending.failure == "it broke"
    with pytest.raises(EngineError):
        await anext(pending.submit(REQUEST))


async def test_a_configuration_error_keeps_its_kind() -> None:
    pending = Pending(lambda message: None)
    pending.dispatch(Failed("no such model", configuration=True))
    with pytest.raises(ConfigError, match="no such model"):
        await pending.ready
