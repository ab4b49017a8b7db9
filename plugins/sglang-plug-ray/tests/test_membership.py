"""An ingress that follows a directory, with real engines of this process. Needs no ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sglang_plug_ray.arguments import Arguments
from sglang_plug_ray.directory import Directory, EngineEntry
from sglang_plug_ray.membership import Membership

from sglang_plug import EngineLaunch, EngineServer, Request, SamplingParams
from sglang_plug_api.plugin import EngineGroup, engine_group

TIMEOUT = 90.0
ARGUMENTS = Arguments(options={"device": "cpu", "max_total_tokens": 2048})


class Handle:
    """A directory as Ray shows it: each method has ``remote``."""

    def __init__(self) -> None:
        self.directory: Directory | None = Directory()

    def __getattr__(self, name: str) -> Any:
        handle = self

        class Method:
            async def remote(self, *arguments: Any) -> Any:
                if handle.directory is None:
                    raise RuntimeError("it is being restarted")
                return await getattr(handle.directory, name)(*arguments)

        return Method()


class Engine:
    """An engine that reports itself."""

    def __init__(self, id: str, handle: Handle) -> None:
        config, plugins = ARGUMENTS.load()
        self.id, self.handle, self.is_leaving = id, handle, False
        self.server = EngineServer(EngineLaunch(config=config.engine, plugins=plugins), "127.0.0.1")

    async def report_always(self) -> None:
        admitted = frozenset[bytes]()
        while True:
            entry = EngineEntry(self.id, ARGUMENTS.version, self.server.address, admitted, self.is_leaving)
            if self.handle.directory is not None:
                admitted = await self.handle.directory.report_engine(entry)
                self.server.admit_only(tuple(admitted))
            await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[EngineServer]:
    await engine.server.start()
    reporting = asyncio.create_task(engine.report_always())
    try:
        yield engine.server
    finally:
        reporting.cancel()
        await engine.server.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not holds():
            await asyncio.sleep(0.02)


async def answer(group: EngineGroup, id: str) -> int:
    request = Request(id=id, tokens=(5, 6, 7), params=SamplingParams(temperature=0.0, max_new_tokens=6))
    async with asyncio.timeout(TIMEOUT):
        return sum([len(output.tokens) async for output in group.submit(request)])


@pytest.mark.timeout(300)
async def test_engines_come_leave_and_die_while_requests_are_answered() -> None:
    config, plugins = ARGUMENTS.load()
    handle, group = Handle(), engine_group(config, plugins)
    first, second = Engine("first", handle), Engine("second", handle)
    following = asyncio.create_task(Membership(group, handle, ARGUMENTS.version, plugins).run())
    try:
        async with serving(first) as first_server:
            assert (await group.start())["tasks"]
            assert await answer(group, "one") == 6
            handle.directory = None  # connections do not depend on it
            await asyncio.sleep(0.6)
            assert await answer(group, "two") == 6
            handle.directory = Directory()
            async with serving(second) as second_server:
                await until(lambda: second_server.clients == 1)
                first.is_leaving = True
                await until(lambda: first_server.clients == 0)
                assert await answer(group, "three") == 6
                first.is_leaving = False  # the same engine may come again
                await until(lambda: first_server.clients == 1 and len(group.replicas) == 2)
                second_server.kill()
                await until(lambda: [status.failure for status in group.replicas] == [None])
                assert await answer(group, "four") == 6
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await group.close()
