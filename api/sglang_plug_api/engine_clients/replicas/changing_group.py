"""Engines that a platform starts, restarts and stops, as one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from sglang_plug import EngineClient, ReplicaReply, StepStats

from .checked_routing import CheckedRouting
from .combined_replies import check_alike, combined_info
from .group import ReplicaGroup, note_step, pass_step
from .replica import Replica

logger = logging.getLogger(__name__)

POLL = 0.05
NONE_SERVES = "no engine serves at present"


class EngineGroup(ReplicaGroup):
    """A group whose engines come and go: whoever runs it adds clients, and removes those that failed or shall stop.

    The group itself starts no engine again. Requests, retries and control calls are those of ``ReplicaGroup``. An
    engine that is added repeats the control calls with a lasting effect that were made through this group.

    Args:
        routing: chooses the engine of a request.
    """

    def __init__(self, routing: CheckedRouting) -> None:
        super().__init__((), routing, max_restarts=0, window=0.0)
        self._info: Mapping[str, Any] | None = None
        self._listeners: list[Callable[[StepStats], None]] = []
        self._joined = asyncio.Event()

    async def start(self) -> Mapping[str, Any]:
        """Wait until an engine was added; return the description of all."""
        while not self._replicas:
            self._joined.clear()
            await self._joined.wait()
        assert self._info is not None
        return combined_info([ReplicaReply(replica.replica, self._info) for replica in self._replicas])

    async def add(self, client: EngineClient) -> int:
        """Start a client, and let it serve; return its number, which is the lowest that is free.

        Raises ``EngineError`` if it does not start, and ``ConfigError`` if it serves something else than the others.
        """
        try:
            info = await client.start()
            async with self._lasting.lock:
                if self._info is None:
                    self._lasting.started_with(info)
                else:
                    check_alike([self._info, info])
                    await self._lasting.repeat(client)
                self._info = self._info or info
                return self._join(client)
        except BaseException:
            await client.close()
            raise

    def _join(self, client: EngineClient) -> int:
        used = {replica.replica for replica in self._replicas}
        replica = Replica(next(number for number in count() if number not in used), client)
        client.on_step(partial(note_step, replica))
        for listener in self._listeners:
            client.on_step(partial(pass_step, replica.replica, listener))
        self._routing.forget(replica.replica)
        self._replicas.append(replica)
        self._router.changed()
        self._joined.set()
        logger.info("Engine %d serves; there are %d", replica.replica, len(self._replicas))
        return replica.replica

    async def remove(self, number: int) -> None:
        """Take an engine out, and close its client; an unknown number is ignored.

        One that serves gets no further request as soon as another one serves, and is closed after its last request.
        """
        replica = next((replica for replica in self._replicas if replica.replica == number), None)
        if replica is None or replica.leaving:
            return
        replica.leaving = True
        self._router.changed()
        try:
            while replica.client.failure is None and (replica.requests or not self._others_serve(replica)):
                await asyncio.sleep(POLL)
        finally:
            if replica in self._replicas:
                self._replicas.remove(replica)
                self._router.changed()
            await replica.client.close()
        logger.info("Engine %d was removed; there are %d", number, len(self._replicas))

    def _others_serve(self, replica: Replica) -> bool:
        return any(not other.leaving for other in self._router.serving() if other is not replica)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step of every engine, also of those added later."""
        self._listeners.append(listener)
        super().on_step(listener)

    @property
    def failure(self) -> str | None:
        """The reasons why no engine can serve at present; the platform may start others."""
        return super().failure if self._replicas else NONE_SERVES

    async def wait_failed(self) -> str:
        """Wait for ever: the platform may always add an engine."""
        await asyncio.Event().wait()
        return ""
