"""The client's side of requests in flight: outputs that wait for their readers are merged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.contracts.request import Output, Request, RequestError
from sglang_plug.contracts.serving.engine_client import EngineClient, EngineError
from sglang_plug.contracts.serving.observer import StepStats
from sglang_plug.engine.messages.api_messages import (
    Abort,
    Control,
    Failed,
    FromEngine,
    Pause,
    Ready,
    Reply,
    Resume,
    StepOutputs,
    Submit,
    ToEngine,
)

MAX_UNREAD_TOKENS = 128
"""Largest number of tokens that wait for a request's reader before its sequence is paused."""


class Channel:
    """The outputs of one request that its reader has not taken yet, merged into one."""

    def __init__(self) -> None:
        self.paused = False
        """True from the time the engine is asked to pause the request until the reader takes the waiting output."""
        self.has_ended = False
        """True once the last output of the request has arrived."""
        self._output: Output | None = None
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, output: Output) -> None:
        """Add the output of a step."""
        self.has_ended = output.finish is not None
        self._output = output if self._output is None else merge(self._output, output)
        self._arrived.set()

    @property
    def falls_behind(self) -> bool:
        """True if too many tokens of an unfinished request wait for its reader."""
        output = self._output
        return output is not None and output.finish is None and len(output.tokens) > MAX_UNREAD_TOKENS

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in the reader after the waiting output, because the engine has ended."""
        self._failure = error
        self._arrived.set()

    async def take(self) -> Output:
        """Return the output since the last call; wait if there is none."""
        await self._arrived.wait()
        self._arrived.clear()
        output, self._output = self._output, None
        if output is not None:
            if self._failure is not None:
                self._arrived.set()
            return output
        assert self._failure is not None
        raise self._failure


def merge(first: Output, second: Output) -> Output:
    """Merge two consecutive outputs of one request."""
    return replace(
        second,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        loaded_tokens=second.loaded_tokens or first.loaded_tokens,
        retractions=max(first.retractions, second.retractions),
        drafts=second.drafts or first.drafts,
    )


class InFlightRequests:
    """Requests and control calls in flight, independent of how messages are sent. Used by one event loop."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self.send = send
        self._open = set[str]()
        """Ids of the requests that are being read."""
        self._channels: dict[str, Channel] = {}
        """The channels of requests, by the id under which the engine knows the request."""
        self._ending = set[str]()
        """Ids in the engine of aborted requests whose last outputs have not arrived yet."""
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._listeners: list[Callable[[StepStats], None]] = []
        self._calls = 0
        self._failed = asyncio.Event()
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.failure: str | None = None

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Hand a request over and iterate over its outputs; see ``EngineClient.submit``."""
        if self.failure is not None:
            raise EngineError(self.failure)
        if request.id in self._open:
            raise RequestError(f"Duplicate request ID: {request.id!r} is still being served")
        id = self._engine_id(request.id)
        self._open.add(request.id)
        channel = self._channels[id] = Channel()
        is_sent = finished = False
        try:
            self.send(Submit(request if id == request.id else replace(request, id=id)))
            is_sent = True
            while not finished:
                output = await channel.take()
                if channel.paused:
                    channel.paused = False
                    self.send(Resume((id,)))
                finished = output.finish is not None
                if output.finish is not None and output.finish.reason == "error":
                    finish = output.finish
                    raise RequestError(finish.message, finish.status, finish.about, finish.field)
                yield output if id == request.id else replace(output, id=request.id)
        except EngineError:
            finished = True
            raise
        finally:
            del self._channels[id]
            self._open.discard(request.id)
            if is_sent and not finished and not channel.has_ended and self.failure is None:
                self._ending.add(id)
                # an error must not hide the exception that ended the request, such as a cancellation
                with contextlib.suppress(EngineError):
                    self.send(Abort((id,)))

    def _engine_id(self, id: str) -> str:
        """Return the id by which the engine knows a new request: another one while an aborted one still has ``id``."""
        while id in self._ending or id in self._channels:
            self._calls += 1
            id = f"{id}#{self._calls}"
        return id

    async def control(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a control call; see ``EngineClient.control``."""
        if self.failure is not None:
            raise EngineError(self.failure)
        self._calls += 1
        number = self._calls
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(Control(number, name, arguments))
            return await reply
        finally:
            del self._replies[number]

    def listen(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step; see ``EngineClient.on_step``."""
        self._listeners.append(listener)

    def dispatch(self, message: FromEngine) -> None:
        """Deliver a message from the engine to the request, call or listeners that it is for."""
        match message:
            case StepOutputs(outputs, stats):
                for output in outputs:
                    if (channel := self._channels.get(output.id)) is None:
                        if output.finish is not None:
                            self._ending.discard(output.id)
                    else:
                        channel.put(output)
                        if channel.falls_behind and not channel.paused and self.failure is None:
                            channel.paused = True
                            self.send(Pause((output.id,)))
                if stats is not None:
                    for listener in self._listeners:
                        listener(stats)
            case Reply(number, value, error, status):
                reply = self._replies.get(number)
                if reply is not None and not reply.done():
                    if error is None:
                        reply.set_result(value)
                    else:
                        reply.set_exception(RequestError(error, status))
            case Ready(info):
                if not self.ready.done():
                    self.ready.set_result(info)
            case Failed(text, configuration):
                self.fail(ConfigError(text) if configuration else EngineError(text))

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in all waiting requests and calls, because the engine has ended."""
        if self.failure is not None:
            return
        self.failure = str(error)
        self._failed.set()
        if not self.ready.done():
            self.ready.set_exception(error)
        for channel in self._channels.values():
            channel.fail(EngineError(self.failure))
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineError(self.failure))

    async def wait_failed(self) -> str:
        """Wait until the engine has failed; return the reason."""
        await self._failed.wait()
        return self.failure or ""


class MessageClient(EngineClient):
    """A client that reaches its engine through ``InFlightRequests``, made by its ``start``."""

    def __init__(self) -> None:
        self._pending: InFlightRequests | None = None

    @property
    def _link(self) -> InFlightRequests:
        if self._pending is None:
            raise RuntimeError("the engine was not started: await client.start() first")
        return self._pending

    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Serve a request; closing the iterator early aborts it."""
        return self._link.submit(request)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call between two steps."""
        return await self._link.control(name, arguments)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` after every step."""
        self._link.listen(listener)

    @property
    def failure(self) -> str | None:
        """The reason why the engine can no longer serve."""
        return self._link.failure

    async def wait_failed(self) -> str:
        """Wait until the engine has failed; return the reason."""
        return await self._link.wait_failed()
