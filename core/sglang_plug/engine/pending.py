"""The client's side of requests in flight: outputs wait here for their readers, merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.policy import StepStats
from sglang_plug.request import Output, Request, RequestError

from .client import EngineClient, EngineError
from .messages import Abort, Control, Failed, FromEngine, News, Ready, Reply, Submit, ToEngine


class Channel:
    """Outputs of one request that its reader has not taken yet; more than one become one."""

    def __init__(self) -> None:
        self._output: Output | None = None
        self._failure: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, output: Output) -> None:
        """Add what came of a step."""
        self._output = output if self._output is None else merge(self._output, output)
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """The engine is gone."""
        self._failure = error
        self._arrived.set()

    async def take(self) -> Output:
        """Everything since the last call; waits if there is nothing."""
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
    """Two outputs of one request, one after the other, as one."""
    return replace(
        second,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        retractions=max(first.retractions, second.retractions),
        drafts=second.drafts or first.drafts,
    )


class Pending:
    """Requests and control calls in flight, over any way of sending messages. Lives in one event loop."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self.send = send
        self._channels: dict[str, Channel] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._listeners: list[Callable[[StepStats], None]] = []
        self._calls = 0
        self._failed = asyncio.Event()
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.failure: str | None = None

    async def submit(self, request: Request) -> AsyncIterator[Output]:
        """As ``EngineClient.submit``."""
        if self.failure is not None:
            raise EngineError(self.failure)
        if request.id in self._channels:
            raise RequestError(f"Duplicate request ID: {request.id!r} is still being served")
        channel = self._channels[request.id] = Channel()
        finished = False
        self.send(Submit(request))
        try:
            while not finished:
                output = await channel.take()
                finished = output.finish is not None
                if output.finish is not None and output.finish.reason == "error":
                    raise RequestError(output.finish.message, output.finish.status, output.finish.about)
                yield output
        except EngineError:
            finished = True
            raise
        finally:
            del self._channels[request.id]
            if not finished and self.failure is None:
                self.send(Abort((request.id,)))

    async def control(self, name: str, arguments: dict[str, Any]) -> Any:
        """As ``EngineClient.control``."""
        if self.failure is not None:
            raise EngineError(self.failure)
        self._calls += 1
        number = self._calls
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self.send(Control(number, name, arguments))
        try:
            return await reply
        finally:
            del self._replies[number]

    def listen(self, listener: Callable[[StepStats], None]) -> None:
        """As ``EngineClient.on_step``."""
        self._listeners.append(listener)

    def dispatch(self, message: FromEngine) -> None:
        """Hand a message from the engine to whoever waits for it."""
        match message:
            case News(outputs, stats):
                for output in outputs:
                    if (channel := self._channels.get(output.id)) is not None:
                        channel.put(output)
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
        """The engine is gone: everybody who waits gets ``error``."""
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
        """Returns when the engine has failed, with the reason."""
        await self._failed.wait()
        return self.failure or ""


class PendingClient(EngineClient):
    """A client that reaches its engine through ``Pending``, which its ``start`` makes."""

    def __init__(self) -> None:
        self._pending: Pending | None = None

    @property
    def _link(self) -> Pending:
        if self._pending is None:
            raise RuntimeError("the engine was not started: await client.start() first")
        return self._pending

    def submit(self, request: Request) -> AsyncIterator[Output]:
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
        """Why the engine can serve no longer."""
        return self._link.failure

    async def wait_failed(self) -> str:
        """Returns when the engine has failed."""
        return await self._link.wait_failed()
