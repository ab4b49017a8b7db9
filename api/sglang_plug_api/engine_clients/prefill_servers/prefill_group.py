"""The engines of a prefill server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

from sglang_plug import EngineClient, Output, Request, RequestError
from sglang_plug.clients.prefill_server import PrefillServer
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from sglang_plug_api.engine_clients.replicas.group import ReplicaGroup
from sglang_plug_api.engine_clients.replicas.prefilled_client import generates, transfers_of

logger = logging.getLogger(__name__)

ADDRESS = "prefill_address"
"""The fact of ``info`` that says where decode servers connect."""


class PrefillGroup(ReplicaGroup):
    """A group that computes prompts for the decode servers that connect to it.

    Args:
        makes: see ``ReplicaGroup``.
        routing: see ``ReplicaGroup``.
        fingerprint: see ``PrefillServer``.
        host: see ``PrefillServer``.
        port: see ``PrefillServer``.
        keys: see ``PrefillServer``.
        max_restarts: see ``ReplicaGroup``.
        window: see ``ReplicaGroup``.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], EngineClient]],
        routing: CheckedRouting,
        fingerprint: Iterable[tuple[str, str, str]],
        *,
        host: str,
        port: int,
        keys: tuple[bytes, bytes],
        max_restarts: int,
        window: float,
    ) -> None:
        super().__init__(makes, routing, max_restarts=max_restarts, window=window)
        self._prompts = PrefillServer(self, fingerprint, host=host, port=port, keys=keys)

    async def start(self) -> Mapping[str, Any]:
        """Start all engines, then let decode servers connect. Raises ``ConfigError`` if nothing can be transferred."""
        self._prompts.bind()  # a port that is taken is reported before weights are loaded
        try:
            info = await super().start()
            transfers_of(await super().control("info"))
        except BaseException:
            await self.close()
            raise
        self._prompts.serve()
        logger.info("Decode servers connect with --prefill-servers %s", self._prompts.address)
        return {**info, ADDRESS: self._prompts.address}

    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Compute a prompt, see ``EngineClient.submit``. Raises ``RequestError`` for a request that generates."""
        if generates(request):
            raise RequestError(
                "this server only computes prompts for decode servers (--role prefill): send the request to a decode "
                "server"
            )
        return super().submit(request)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call, see ``ReplicaGroup.control``; ``info`` also has the address for decode servers."""
        answer = await super().control(name, **arguments)
        return {**answer, ADDRESS: self._prompts.address} if name == "info" else answer

    async def close(self) -> None:
        """Leave the decode servers, and stop all engines."""
        await self._prompts.close()
        await super().close()
