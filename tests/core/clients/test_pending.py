from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sglang_plug import Finish, Output, Request, RequestError, SamplingParams
from sglang_plug.clients.pending import MAX_UNREAD_TOKENS, InFlightRequests
from sglang_plug.config import ConfigError
from sglang_plug.contracts.serving.engine_client import EngineError
from sglang_plug.engine.messages.api_messages import (
    Abort,
    Control,
    Failed,
    Pause,
    Ready,
    Reply,
    Resume,
    StepOutputs,
    Submit,
    ToEngine,
)

REQUEST = Request(id="a", tokens=(1,), params=SamplingParams())


async def test_outputs_that_nobody_read_yet_are_merged() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    stream = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert sent == [Submit(REQUEST)]
    pending.dispatch(StepOutputs([Output(id="a", tokens=(5,), cached_tokens=3)]))
    pending.dispatch(StepOutputs([Output(id="a", tokens=(6,)), Output(id="stranger", tokens=(9,))]))
    assert (await first).tokens == (5, 6)
    pending.dispatch(StepOutputs([Output(id="a", tokens=(7,), finish=Finish("stop", matched=7))]))
    assert [output.tokens async for output in stream] == [(7,)]
    assert len(sent) == 1  # finished: nothing to abort


async def test_closing_the_stream_aborts() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    stream = pending.submit(REQUEST)
    pending_first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    pending.dispatch(StepOutputs([Output(id="a", tokens=(5,))]))
    await pending_first
    await stream.aclose()  # type: ignore[attr-defined]
    assert sent[-1] == Abort(("a",))


async def test_cancelling_a_waiting_reader_aborts() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)

    async def read() -> None:
        async for _ in pending.submit(REQUEST):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent[-1] == Abort(("a",))


async def left(pending: InFlightRequests, *outputs: Output) -> None:
    """Submit a request, dispatch ``outputs`` to it, and close its stream after the first output."""
    stream = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for output in outputs:
        pending.dispatch(StepOutputs([output]))
    await first
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_request_does_not_get_outputs_of_an_aborted_one_with_its_id() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    await left(pending, Output(id="a", tokens=(1,)))
    again = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(again))
    await asyncio.sleep(0)
    submitted = [message.request.id for message in sent if isinstance(message, Submit)]
    assert submitted[0] == "a" != submitted[1]
    pending.dispatch(StepOutputs([Output(id="a", tokens=(2,)), Output(id=submitted[1], tokens=(7,))]))
    pending.dispatch(StepOutputs([Output(id="a", finish=Finish("abort"))]))
    assert await first == Output(id="a", tokens=(7,))
    with pytest.raises(RequestError, match="Duplicate request ID: 'a'"):
        await anext(pending.submit(REQUEST))
    await again.aclose()  # type: ignore[attr-defined]
    assert sent[-1] == Abort((submitted[1],))
    pending.dispatch(StepOutputs([Output(id=submitted[1], finish=Finish("abort"))]))
    await left(pending, Output(id="a", tokens=(3,)))
    assert sent[-2] == Submit(REQUEST), "nothing has the id any more"


async def test_a_request_that_ended_before_its_reader_left_frees_its_id() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    await left(pending, Output(id="a", tokens=(1,)), Output(id="a", tokens=(2,), finish=Finish("length")))
    stream = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    pending.dispatch(StepOutputs([Output(id="a", tokens=(5,))]))
    await first
    pending.dispatch(StepOutputs([Output(id="a", tokens=(6,), finish=Finish("length"))]))
    await stream.aclose()  # type: ignore[attr-defined]
    assert [type(message) for message in sent] == [Submit, Submit], "nothing was to be aborted"
    await left(pending, Output(id="a", tokens=(3,)))
    assert sent[-2] == Submit(REQUEST)


async def test_an_id_that_looks_like_one_that_was_made_is_another_request() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    await left(pending, Output(id="a", tokens=(1,)))
    streams = [pending.submit(replace(REQUEST, id=id)) for id in ("a", "a#1", "a#2")]
    for stream in streams:
        asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
    ids = [message.request.id for message in sent if isinstance(message, Submit)]
    assert len(set(ids)) == len(ids) == 4


async def test_a_cancellation_is_seen_though_the_engine_is_gone() -> None:
    """A request is waited for after its cancellation; an error raised instead would be taken for the request's own."""

    def send(message: ToEngine) -> None:
        if isinstance(message, Abort):
            raise EngineError("the engine process is gone")

    pending = InFlightRequests(send)

    async def read() -> None:
        async for _ in pending.submit(REQUEST):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_request_that_cannot_be_sent_leaves_nothing_behind() -> None:
    pending = InFlightRequests(lambda message: None)

    def send(message: ToEngine) -> None:
        raise EngineError("the engine process is gone")

    pending.send = send
    for _ in range(2):  # the second one is not rejected as a duplicate
        with pytest.raises(EngineError, match="is gone"):
            await anext(pending.submit(REQUEST))


async def test_the_id_of_a_request_that_cannot_be_encoded_is_free_again() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)

    def send(message: ToEngine) -> None:
        if isinstance(message, Submit):
            raise TypeError("Encoding objects of type Unsendable is unsupported")
        sent.append(message)

    pending.send = send
    with pytest.raises(TypeError, match="Unsendable"):
        await anext(pending.submit(REQUEST))
    pending.send = sent.append
    stream = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert sent == [Submit(REQUEST)]
    pending.dispatch(StepOutputs([Output(id="a", finish=Finish("stop"))]))
    await first


async def test_a_refusal_is_an_error_with_a_status() -> None:
    pending = InFlightRequests(lambda message: None)
    stream = pending.submit(REQUEST)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    finish = Finish("error", message="full", status=503, about="processor_fields", field="steer.token")
    pending.dispatch(StepOutputs([Output(id="a", finish=finish)]))
    with pytest.raises(RequestError, match="full") as caught:
        await task
    error = caught.value
    assert (error.status, error.about, error.field) == (503, "processor_fields", "steer.token")


async def test_control_calls_are_told_apart() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    calls = [asyncio.ensure_future(pending.control(name, {})) for name in ("one", "two")]
    await asyncio.sleep(0)
    numbers = {message.name: message.number for message in sent if isinstance(message, Control)}
    pending.dispatch(Reply(numbers["two"], 2))
    pending.dispatch(Reply(numbers["one"], error="no", status=400))
    assert await calls[1] == 2
    with pytest.raises(RequestError, match="no"):
        await calls[0]


async def test_a_dead_engine_fails_everybody() -> None:
    pending = InFlightRequests(lambda message: None)
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
    pending = InFlightRequests(lambda message: None)
    pending.dispatch(Failed("no such model", configuration=True))
    with pytest.raises(ConfigError, match="no such model"):
        await pending.ready


async def test_a_request_whose_reader_falls_behind_is_paused_until_it_has_caught_up() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    stream = pending.submit(REQUEST)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    pending.dispatch(StepOutputs([Output(id="a", tokens=(5,))]))
    await first
    for _ in range(3 * MAX_UNREAD_TOKENS):  # nobody reads them
        pending.dispatch(StepOutputs([Output(id="a", tokens=(6,))]))
    assert sent[1:] == [Pause(("a",))]
    assert len((await anext(stream)).tokens) == 3 * MAX_UNREAD_TOKENS
    assert sent[1:] == [Pause(("a",)), Resume(("a",))]
    pending.dispatch(StepOutputs([Output(id="a", tokens=(7,), finish=Finish("length"))]))
    assert [output.tokens async for output in stream] == [(7,)]
    assert sent[1:] == [Pause(("a",)), Resume(("a",))]


async def test_a_reader_that_keeps_up_and_a_request_that_is_over_are_never_paused() -> None:
    sent: list[ToEngine] = []
    pending = InFlightRequests(sent.append)
    stream = pending.submit(REQUEST)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for _ in range(2 * MAX_UNREAD_TOKENS):
        pending.dispatch(StepOutputs([Output(id="a", tokens=(5,))]))
        await reading
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
    last = Output(id="a", tokens=(6,) * 2 * MAX_UNREAD_TOKENS, finish=Finish("length"))
    pending.dispatch(StepOutputs([last]))
    await reading
    assert sent == [Submit(REQUEST)]
