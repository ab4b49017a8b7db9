"""Engine clients with one planted fault each, as the author of a deployment could write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from sglang_plug import EngineClient, EngineError, EngineLaunch, Finish, Output, Request, RequestError, StepStats
from sglang_plug.clients.thread_client import ThreadClient


class Wrapped(EngineClient):
    """A client that forwards everything to an engine in a thread; subclasses change one method."""

    def __init__(self, launch: EngineLaunch) -> None:
        self.inner = ThreadClient(launch.config, launch.plugins)

    async def start(self) -> Mapping[str, Any]:
        return await self.inner.start()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async with aclosing(self.inner.submit(request)) as outputs:
            async for output in outputs:
                yield output

    async def control(self, name: str, **arguments: Any) -> Any:
        return await self.inner.control(name, **arguments)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self.inner.on_step(listener)

    @property
    def failure(self) -> str | None:
        return self.inner.failure

    async def wait_failed(self) -> str:
        return await self.inner.wait_failed()

    def kill(self) -> None:
        self.inner.kill()

    async def close(self) -> None:
        await self.inner.close()


class ShiftsOutputs(Wrapped):
    """Assigns outputs to requests by their indices, which change when a request ends."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.sources, self.readers = list[str](), list[asyncio.Queue[Output | Exception]]()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        queue = asyncio.Queue[Output | Exception]()
        self.sources.append(request.id)
        self.readers.append(queue)
        reader = asyncio.create_task(self.read(request))
        try:
            finished = False
            while not finished:
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                finished = output.finish is not None
                yield replace(output, id=request.id)
        finally:
            reader.cancel()
            if queue in self.readers:
                self.readers.remove(queue)

    async def read(self, request: Request) -> None:
        try:
            async for output in super().submit(request):
                index = self.sources.index(request.id)
                self.readers[min(index, len(self.readers) - 1)].put_nowait(output)
        except (EngineError, RequestError) as error:
            self.readers[self.sources.index(request.id)].put_nowait(error)
        finally:
            del self.sources[-1]


class FinishesTwice(Wrapped):
    """Yields the last output a second time, without tokens."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield output
            if output.finish is not None:
                yield replace(output, tokens=())


class OneAfterTheOther(Wrapped):
    """Serves one request at a time."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.lock = asyncio.Lock()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async with self.lock:
            async for output in super().submit(request):
                yield output


class ForgetsFields(Wrapped):
    """Sends only tokens and parameters to the engine."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        sent = Request(id=request.id, tokens=request.tokens, params=request.params, arrived=request.arrived)
        async for output in super().submit(sent):
            yield output


class ForgetsSalt(Wrapped):
    """Shares prefixes between tenants."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(replace(request, salt="")):
            yield output


class ForgetsTask(Wrapped):
    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(replace(request, task="generate")):
            yield output


class ForgetsLogprobs(Wrapped):
    """Does not send log-probabilities back."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield replace(output, logprobs=())


class ForgetsPromptLogprobs(Wrapped):
    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield replace(output, prompt_logprobs=())


class ForgetsCachedTokens(Wrapped):
    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield replace(output, cached_tokens=0)


class AlwaysLength(Wrapped):
    """Says that every output ended because of its length."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield replace(output, finish=output.finish and Finish("length"))


class ForgetsStatus(Wrapped):
    """Raises every refusal with the same status."""

    async def control(self, name: str, **arguments: Any) -> Any:
        try:
            return await super().control(name, **arguments)
        except RequestError as error:
            raise RequestError(str(error)) from None


class ForgetsArguments(Wrapped):
    """Passes the name of a control call on, without its arguments."""

    async def control(self, name: str, **arguments: Any) -> Any:
        return await super().control(name)


class SwapsReplies(Wrapped):
    """Gives the reply of the last control call to all that wait."""

    last: Any = None

    async def control(self, name: str, **arguments: Any) -> Any:
        self.last = asyncio.ensure_future(super().control(name, **arguments))
        await asyncio.sleep(0)
        return await asyncio.shield(self.last)


class ControlAfterRequests(Wrapped):
    """Runs control calls only while no request is in flight."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.running, self.idle = 0, asyncio.Event()
        self.idle.set()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.running += 1
        self.idle.clear()
        try:
            async for output in super().submit(request):
                yield output
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    async def control(self, name: str, **arguments: Any) -> Any:
        await self.idle.wait()
        return await super().control(name, **arguments)


class TakesDuplicates(Wrapped):
    """Accepts a request whose id is in flight already, under another id."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.count = 0

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.count += 1
        async for output in super().submit(replace(request, id=f"{request.id}-{self.count}")):
            yield replace(output, id=request.id)


class TellsOneReader(Wrapped):
    """Reports the death of the engine to the first reader only."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.reported = False

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        try:
            async for output in super().submit(request):
                yield output
        except EngineError:
            if self.reported and self.inner.failure:
                await asyncio.Event().wait()
            self.reported = True
            raise


class ControlHangs(Wrapped):
    """Blocks control calls for ever when the engine has died."""

    async def control(self, name: str, **arguments: Any) -> Any:
        try:
            return await super().control(name, **arguments)
        except EngineError:
            return await asyncio.Event().wait()


class TakesRequestsWhenDead(Wrapped):
    """Blocks new requests for ever when the engine has died."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        if self.inner.failure is not None:
            await asyncio.Event().wait()
        async for output in super().submit(request):
            yield output


class WaitsOnce(Wrapped):
    """Reports a failure only to the first of several waiting tasks."""

    waiting = False

    async def wait_failed(self) -> str:
        if self.waiting:
            await asyncio.Event().wait()
        self.waiting = True
        return await super().wait_failed()


class NeverFails(Wrapped):
    async def wait_failed(self) -> str:
        return str(await asyncio.Event().wait())


class FailsAtOnce(Wrapped):
    async def wait_failed(self) -> str:
        return self.inner.failure or ""


class FailsForNoReason(Wrapped):
    async def wait_failed(self) -> str:
        await super().wait_failed()
        return ""


class DrainsAtClose(Wrapped):
    """Waits for the requests in flight before it closes."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.running, self.idle = 0, asyncio.Event()
        self.idle.set()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.running += 1
        self.idle.clear()
        try:
            async for output in super().submit(request):
                yield output
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    async def close(self) -> None:
        await self.idle.wait()
        await super().close()


class NeverCloses(Wrapped):
    """Leaves its engine running after ``close``."""

    async def close(self) -> None:
        pass


class ListensLate(Wrapped):
    """Reports only the steps with decoding sequences."""

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self.inner.on_step(lambda stats: listener(stats) if stats.decode_sequences else None)


class NoInfo(Wrapped):
    async def start(self) -> Mapping[str, Any]:
        info = await super().start()
        return {name: info[name] for name in ("fingerprint",) if name in info}


class AbortsOnlyWhenClosed(Wrapped):
    """Aborts a request when the iterator is closed, but not when the reading task is cancelled."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self.cancelled = list[AsyncGenerator[Output, None]]()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        outputs = self.inner.submit(request)
        try:
            finished = False
            while not finished:
                output = await asyncio.shield(asyncio.ensure_future(anext(outputs)))
                finished = output.finish is not None
                yield output
        except asyncio.CancelledError:
            self.cancelled.append(outputs)
            raise
        else:
            await outputs.aclose()
        finally:
            if outputs not in self.cancelled and not outputs.ag_running:
                await outputs.aclose()
