"""The engines of an ingress: those that the directory lists are added to its group, those that leave are removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from sglang_plug import EngineAddress, EngineError, Plugins, RemoteClient
from sglang_plug_api.plugin import EngineGroup

from .directory import PERIOD, EngineEntry

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
"""Seconds in which an engine has to admit a client."""
RETRY_SECONDS = 3.0
"""Seconds after which it is tried again to use an engine."""


class Membership:
    """Keeps a group of engines as the directory describes it.

    An engine that is missing in the directory stays a member while its connection lives: the directory may be new.

    Args:
        group: the group.
        directory: the handle of the directory's deployment.
        version: engines of other versions serve something else.
        plugins: those of this process.
    """

    def __init__(self, group: EngineGroup, directory: Any, version: str, plugins: Plugins) -> None:
        self._group, self._directory, self._version, self._plugins = group, directory, version, plugins
        self._entries: dict[str, EngineEntry] = {}
        self._members: dict[str, tuple[int, RemoteClient]] = {}
        self._keys: dict[str, bytes] = {}
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._reported = asyncio.Condition()

    async def run(self) -> None:
        """Follow the directory until this is cancelled."""
        try:
            while True:
                try:
                    await self._follow(await self._directory.report_client.remote(self._version, self._own_keys()))
                except Exception as error:  # the directory is being restarted: connections go on meanwhile
                    logger.warning("the directory does not answer: %s", error)
                await asyncio.sleep(PERIOD)
        finally:
            for task in self._changing.values():
                task.cancel()
            await asyncio.gather(*self._changing.values(), return_exceptions=True)

    def _own_keys(self) -> frozenset[bytes]:
        return frozenset(self._keys.values())

    async def _follow(self, entries: Sequence[EngineEntry]) -> None:
        async with self._reported:
            self._entries = {entry.id: entry for entry in entries}
            self._reported.notify_all()
        for id, entry in self._entries.items():
            if id not in self._members and not entry.is_leaving:
                self._change(id, self._add(id))
        for id, (number, client) in list(self._members.items()):
            is_leaving = id in self._entries and self._entries[id].is_leaving
            if is_leaving or client.failure is not None:
                self._change(id, self._remove(id, number))

    def _change(self, id: str, work: Any) -> None:
        """Run ``work`` unless the engine is being added or removed already."""
        if id in self._changing:
            work.close()
            return
        task = self._changing[id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changing.pop(id, None))

    async def _add(self, id: str) -> None:
        async def connect(key: bytes) -> EngineAddress:
            self._keys[id] = key
            return await self._admitted(id, key)

        client = RemoteClient(connect, self._plugins)
        try:
            self._members[id] = await self._group.add(client), client
        except Exception as error:  # of any kind: the others must be followed
            self._keys.pop(id, None)
            logger.warning("an engine cannot be used: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _admitted(self, id: str, key: bytes) -> EngineAddress:
        """Wait until the engine says that it admits the key; return its address."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS), self._reported:
                while id not in self._entries or key not in self._entries[id].admitted:
                    await self._reported.wait()
                return self._entries[id].address
        except TimeoutError:
            raise EngineError(f"an engine did not admit this ingress within {CONNECT_SECONDS:g} s") from None

    async def _remove(self, id: str, number: int) -> None:
        try:
            await self._group.remove(number)
        finally:
            self._members.pop(id, None)
            self._keys.pop(id, None)
