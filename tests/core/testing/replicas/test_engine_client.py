"""The conformance test of deployments accepts correct clients and names the faults of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import (
    ConfigError,
    EngineClient,
    EngineError,
    EngineLaunch,
    Finish,
    Output,
    PluginError,
    Plugins,
    Request,
    RequestError,
    StepStats,
)
from sglang_plug.testing import check_engine_client
from tests.core.testing.replicas.faulty_clients import Wrapped

pytestmark = pytest.mark.whole_engine


@pytest.mark.parametrize("name", ["thread", "process"])
def test_built_in_deployments_pass(name: str, model: str) -> None:
    check_engine_client(name, model=model)


class Whole(Wrapped):
    """Returns all outputs at the end, merged into one."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        outputs = [output async for output in super().submit(request)]
        tokens = tuple(token for output in outputs for token in output.tokens)
        yield replace(outputs[-1], tokens=tokens)


class LosesTokens(Wrapped):
    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield (
                replace(output, tokens=output.tokens[:1])
                if len(output.tokens) > 1 or output.finish is None
                else (replace(output, tokens=()))
            )


class NeverEnds(Wrapped):
    """Ends without an output whose ``finish`` is set."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async for output in super().submit(request):
            yield replace(output, finish=None)


class ComputesOn(Wrapped):
    """Continues to read in the background after its iterator was closed."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(launch)
        self._readers = dict[str, asyncio.Task[None]]()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        arrived: asyncio.Queue[Output | Exception] = asyncio.Queue()

        async def read() -> None:
            try:
                async for output in self.inner.submit(request):
                    arrived.put_nowait(output)
            except (EngineError, RequestError) as error:
                arrived.put_nowait(error)

        self._readers[request.id] = asyncio.create_task(read())
        finished = False
        while not finished:
            output = await arrived.get()
            if isinstance(output, Exception):
                raise output
            finished = output.finish is not None
            yield output


class Unmerged(ComputesOn):
    """Aborts, but neither merges outputs nor makes the engine wait for slow readers."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        try:
            async for output in super().submit(request):
                yield output
        finally:
            if (reader := self._readers.pop(request.id, None)) is not None:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)


class ShowsRefusals(Wrapped):
    """Yields an output for a refusal, instead of raising it."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        try:
            async for output in super().submit(request):
                yield output
        except RequestError as error:
            yield Output(id=request.id, finish=Finish("error", message=str(error)))


class AnswersAnything(Wrapped):
    async def control(self, name: str, **arguments: Any) -> Any:
        try:
            return await super().control(name, **arguments)
        except RequestError:
            return None


class OneListener(Wrapped):
    """Calls only the listener that was added last."""

    listener: Callable[[StepStats], None] | None = None

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        if self.listener is None:
            self.inner.on_step(lambda stats: self.listener(stats))  # type: ignore[misc]
        self.listener = listener


class CannotBeKilled(Wrapped):
    def kill(self) -> None:
        pass


class HidesItsDeath(Wrapped):
    """Ends requests in flight as aborted when the engine dies."""

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        try:
            async for output in super().submit(request):
                yield output
        except EngineError:
            yield Output(id=request.id, finish=Finish("abort"))


class NoReason(Wrapped):
    @property
    def failure(self) -> str | None:
        return None


class ClosesOnce(Wrapped):
    closed = False

    async def close(self) -> None:
        assert not self.closed, "it is closed"
        self.closed = True
        await super().close()


class EngineErrors(Wrapped):
    """Raises ``EngineError`` for every failed start, also for configuration errors."""

    async def start(self) -> Mapping[str, Any]:
        try:
            return await super().start()
        except ConfigError as error:
            raise EngineError(str(error)) from error


class IgnoresConfiguration(Wrapped):
    """Starts an engine with another configuration than the given one."""

    def __init__(self, launch: EngineLaunch) -> None:
        cache = replace(launch.config.cache, prefix_cache="auto")
        super().__init__(replace(launch, config=replace(launch.config, cache=cache)))


class StartsOn(Wrapped):
    """Ignores cancellation while it starts."""

    async def start(self) -> Mapping[str, Any]:
        starting = asyncio.ensure_future(super().start())
        while not starting.done():
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:
                continue
        return starting.result()


class NeedsItsLoop(Wrapped):
    """Can be killed only from the event loop's thread."""

    def kill(self) -> None:
        asyncio.get_running_loop().call_soon(self.inner.kill)


class NoFingerprint(Wrapped):
    async def start(self) -> Mapping[str, Any]:
        return {**await super().start(), "fingerprint": []}


class Pretends(Wrapped):
    """Returns the server's fingerprint instead of its engine's, which discovers plugins itself."""

    def __init__(self, launch: EngineLaunch) -> None:
        super().__init__(replace(launch, plugins=Plugins.discover(launch.config.plugins)))
        self.fingerprint = launch.plugins.fingerprint

    async def start(self) -> Mapping[str, Any]:
        return {**await super().start(), "fingerprint": self.fingerprint}


@pytest.mark.planted_bug("deployment")
@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Whole, "came in one output"),
        (LosesTokens, "a request for [0-9]+ tokens received"),
        (NeverEnds, "the last output, and no other"),
        (ComputesOn, "although its iterator was closed"),
        (Unmerged, "must be paused"),
        (ShowsRefusals, "outside of the vocabulary was not refused"),
        (AnswersAnything, "unknown control call was not refused"),
        (OneListener, "two listeners"),
        (CannotBeKilled, "a request in flight when kill"),
        (HidesItsDeath, "a request in flight when kill"),
        (NoReason, "must say why"),
        (ClosesOnce, "it is closed"),
        (EngineErrors, "refused with EngineError, not with ConfigError"),
        (IgnoresConfiguration, "prefix cache that does not exist"),
        (StartsOn, "must raise CancelledError"),
        (NeedsItsLoop, "kill.. from another thread"),
        (NoFingerprint, "has to have the plugins of its launch"),
        (Pretends, "but the engine sees other ones"),
    ],
)
def test_what_is_wrong_is_named(client: Callable[[EngineLaunch], EngineClient], message: str, model: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_engine_client(client, model=model)


def test_a_right_client_of_a_function_passes(model: str) -> None:
    check_engine_client(Wrapped, model=model)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PluginError, match="oracle"):
        check_engine_client("oracle")
