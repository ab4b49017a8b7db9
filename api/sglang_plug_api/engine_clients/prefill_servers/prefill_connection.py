"""A prefill server, seen from a decode server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from sglang_plug import ConfigError, EngineClient, EngineError, Output, Request, StepStats
from sglang_plug.clients.remote_client import RefusedError

logger = logging.getLogger(__name__)

FIRST_SECONDS = 5.0
"""Seconds for which the start waits for a prefill server."""
CONNECT_SECONDS = 10.0
RETRY_SECONDS = 2.0
"""Seconds after which a connection that was lost, or not made, is tried again."""


class PrefillConnection(EngineClient):
    """Connects to a prefill server, and again whenever the connection is lost, for as long as this server runs.

    Args:
        address: names the prefill server in messages.
        make: makes a new client of it, not started.
        check: raises ``ConfigError`` if the prefill server, described by its ``info``, does not fit this server.
        lost: called when the connection is lost.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[], EngineClient],
        check: Callable[[Mapping[str, Any]], Awaitable[None]],
        lost: Callable[[], None],
    ) -> None:
        self.address = address
        self._make = make
        self._check = check
        self._lost = lost
        self._client: EngineClient | None = None
        self._failure: str | None = "it is not connected yet"
        self._refusal: ConfigError | None = None
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Mapping[str, Any]:
        """Connect; wait some seconds for the result. Raises ``ConfigError`` if the server does not fit this one."""
        self._task = asyncio.create_task(self._stay_connected())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                await self._tried.wait()
        if self._refusal is not None:
            await self.close()
            raise self._refusal
        return {}

    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Let the prefill server serve a request. Raises ``EngineError`` if it is away."""
        return self._connected().submit(request)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call of the prefill server, which allows ``info`` only."""
        return await self._connected().control(name, **arguments)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Do nothing: the steps of a prefill server are reported there."""

    @property
    def failure(self) -> str | None:
        """The reason why the prefill server computes nothing at present, or ``None``."""
        return self._failure or (None if self._client is None else self._client.failure)

    async def wait_failed(self) -> str:
        """Wait for ever: the prefill server may always be back."""
        await asyncio.Event().wait()
        return ""

    @property
    def heartbeat_age(self) -> float:
        """Seconds without a heartbeat."""
        return 0.0 if self._client is None else self._client.heartbeat_age

    async def close(self) -> None:
        """Leave the prefill server. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _connected(self) -> EngineClient:
        if self._client is None:
            raise EngineError(f"the prefill server {self.address} is not reachable: {self._failure}")
        return self._client

    async def _stay_connected(self) -> None:
        while True:
            client = self._make()
            try:
                reason = await self._use(client)
            except ConfigError as error:
                self._refusal = ConfigError(f"the prefill server {self.address} does not fit: {error}")
                reason = f"it does not fit: {error}"
            except RefusedError as error:
                self._refusal = ConfigError(
                    f"the prefill server {self.address} cannot be used: {error}; the secret has to be the same as "
                    "there, and the port that of --prefill-port"
                )
                reason = str(error)
            except TimeoutError:
                reason = f"it does not answer within {CONNECT_SECONDS:g} s"
            except Exception as error:  # of any kind: the connection must not be given up for ever
                reason = str(error) or repr(error)
            finally:
                self._client = None
                await client.close()
            if reason != self._failure:
                logger.warning("Prefill server %s is not used, and prompts are computed here: %s", self.address, reason)
            self._failure = reason
            if self._refusal is not None:  # the end of a handshake that fails may look like a lost connection at first
                self._tried.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _use(self, client: EngineClient) -> str:
        """Connect and wait until the connection is lost; return the reason."""
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.start()
            await self._check(await client.control("info"))
        self._client = client
        self._failure = None
        self._refusal = None
        self._tried.set()
        logger.info("Prefill server %s computes prompts", self.address)
        reason = await client.wait_failed()
        self._lost()
        return reason
