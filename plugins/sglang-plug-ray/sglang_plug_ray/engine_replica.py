"""The Serve deployment of engines: Ray places, watches, restarts and scales its replicas, each with an engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import Any

import ray

from sglang_plug import EngineLaunch, EngineServer

from .arguments import Arguments
from .directory import PERIOD, EngineEntry

logger = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT = 60.0
"""Seconds without a heartbeat from the engine after which the replica is not healthy."""


class EngineReplica:
    """Starts an engine, and reports it to the directory. Undecorated, so that Ray imports it instead of pickling it.

    Args:
        arguments: those of the application, as plain data.
        directory: the handle of the directory's deployment.
    """

    async def __init__(self, arguments: dict[str, Any], directory: Any) -> None:  # type: ignore[misc]
        parsed = Arguments.model_validate(arguments)
        logging.getLogger("sglang_plug").setLevel(logging.INFO)
        config, plugins = await asyncio.to_thread(parsed.load)
        self._id, self._version, self._directory = uuid.uuid4().hex, parsed.version, directory
        self._drain_seconds = parsed.drain_seconds
        self._admitted = frozenset[bytes]()
        self._is_leaving = False
        launch = EngineLaunch(config=config.engine, plugins=plugins)
        self._server = EngineServer(launch, ray.util.get_node_ip_address())
        await self._server.start()
        self._reporting = asyncio.create_task(self._report_always())

    async def _report_always(self) -> None:
        while self._server.failure is None:
            try:
                await self._report()
            except Exception as error:  # the directory is being restarted: its clients stay connected meanwhile
                logger.warning("the directory does not answer: %s", error)
            await asyncio.sleep(PERIOD)

    async def _report(self) -> None:
        entry = EngineEntry(self._id, self._version, self._server.address, self._admitted, self._is_leaving)
        self._admitted = await self._directory.report_engine.remote(entry)
        self._server.admit_only(tuple(self._admitted))

    async def check_health(self) -> None:
        """Raise if the engine has failed, so that Serve replaces this replica."""
        if self._server.failure is not None:
            raise RuntimeError(f"the engine failed: {self._server.failure}")
        if self._server.heartbeat_age > HEARTBEAT_TIMEOUT:
            raise RuntimeError(f"no heartbeat from the engine for {self._server.heartbeat_age:.0f} seconds")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load that the autoscaling policy reads."""
        return {"tokens": float(self._server.queued_tokens + self._server.running_tokens)}

    async def __del__(self) -> None:
        """Let the clients go to other engines, and wait until they have; then stop the engine."""
        if getattr(self, "_reporting", None) is None:
            return
        self._is_leaving = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while self._server.clients and self._server.failure is None:
                    await asyncio.sleep(PERIOD)
        self._reporting.cancel()
        with contextlib.suppress(Exception):
            await self._directory.forget_engine.remote(self._id)
        await self._server.close()
