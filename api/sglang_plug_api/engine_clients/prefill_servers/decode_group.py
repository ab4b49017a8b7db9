"""The engines of a decode server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sglang_plug import ConfigError, EngineClient, Output, Request
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from sglang_plug_api.engine_clients.replicas.group import ReplicaGroup
from sglang_plug_api.engine_clients.replicas.prefill_engines import PrefillEngines
from sglang_plug_api.engine_clients.replicas.prefilled_client import PrefilledClient, transfers_of
from sglang_plug_api.engine_clients.replicas.replica import PREFILL, Replica

from .prefill_connection import PrefillConnection

SERVERS = "prefill_servers"
"""The fact of ``info`` that says which prefill servers are connected."""


class DecodeGroup(ReplicaGroup):
    """A group whose prompts are computed by prefill servers, and by its own engines while those are away.

    Args:
        makes: see ``ReplicaGroup``.
        servers: the address of each prefill server, and a function that makes a new client of it, not started.
        routing: chooses the engine of a request.
        prefill_routing: chooses its prefill server.
        max_restarts: see ``ReplicaGroup``.
        window: see ``ReplicaGroup``.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], EngineClient]],
        servers: Sequence[tuple[str, Callable[[], EngineClient]]],
        routing: CheckedRouting,
        prefill_routing: CheckedRouting,
        *,
        max_restarts: int,
        window: float,
    ) -> None:
        super().__init__(
            [partial(self._prefilled, make) for make in makes],
            routing,
            max_restarts=max_restarts,
            window=window,
        )
        self._connections = [
            PrefillConnection(address, make, self._check, partial(prefill_routing.forget, number))
            for number, (address, make) in enumerate(servers)
        ]
        prefilling = [Replica(number, client, role=PREFILL) for number, client in enumerate(self._connections)]
        self._prefill_engines = PrefillEngines(prefilling, prefill_routing)

    async def start(self) -> Mapping[str, Any]:
        """Start all engines, and connect to the prefill servers; those that are away are not waited for.

        Raises ``ConfigError`` for a prefill server that does not fit.
        """
        info = await super().start()
        try:
            await asyncio.gather(*(connection.start() for connection in self._connections))
        except BaseException:
            await self.close()
            raise
        return info

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call on the engines of this server; ``info`` also has the states of the prefill servers."""
        answer = await super().control(name, **arguments)
        if name != "info":
            return answer
        return {
            **answer,
            SERVERS: [{"address": server.address, "failure": server.failure} for server in self._connections],
        }

    async def close(self) -> None:
        """Leave the prefill servers, and stop all engines."""
        await asyncio.gather(*(connection.close() for connection in self._connections))
        await super().close()

    def _prefilled(self, make: Callable[[], EngineClient]) -> EngineClient:
        return PrefilledClient(make(), self._prefill)

    async def _prefill(self, request: Request) -> Output | None:
        return await self._prefill_engines.compute(request)

    async def _check(self, prefill_info: Mapping[str, Any]) -> None:
        check_fit(await super().control("info"), prefill_info)


def check_fit(own_info: Mapping[str, Any], prefill_info: Mapping[str, Any]) -> None:
    """Raise ``ConfigError``, naming the differences, if the blocks of a prefill server are of no use to this server.

    Args:
        own_info: the ``info`` of this server.
        prefill_info: that of the prefill server.
    """
    transfers_of(prefill_info)
    own, other = own_info["kv_stores"]["identity"], prefill_info["kv_stores"]["identity"]
    differing = [
        f"{name} is {other.get(name)!r} there and {own.get(name)!r} here"
        for name in sorted({*own, *other})
        if own.get(name) != other.get(name) and not (name == "weights" and None in (own.get(name), other.get(name)))
    ]
    if differing:
        raise ConfigError("its keys and values are not those of this server: " + "; ".join(differing))
