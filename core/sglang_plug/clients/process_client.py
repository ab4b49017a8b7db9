"""The engine in a process of its own, used by servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug.config import EngineConfig
from sglang_plug.plugins.registry import Plugins

from .engine_process import EngineProcess
from .pending import InFlightRequests, MessageClient


class ProcessClient(MessageClient):
    """An engine in a spawned process, which ends when this one does.

    Args:
        config: the engine's configuration.
        plugins: those of this process; the engine must see the same.
        cores: the CPU cores that the engine runs on; empty: any.
    """

    def __init__(self, config: EngineConfig, plugins: Plugins, cores: Sequence[int] = ()) -> None:
        super().__init__()
        self._config, self._plugins, self._cores = config, plugins, cores
        self._process: EngineProcess | None = None

    async def start(self) -> Mapping[str, Any]:
        """Spawn the engine and wait until it can serve; return its ``info``."""
        try:
            self._pending = pending = InFlightRequests(lambda message: process.send(message))
            self._process = process = EngineProcess(
                self._config, self._plugins, self._cores, dispatch=pending.dispatch, fail=pending.fail
            )
            return await pending.ready
        except BaseException:
            await self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return None if self._process is None else self._process.pid

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the process."""
        return 0.0 if self._process is None else self._process.heartbeat_age

    def kill(self) -> None:
        """Kill the process; its child processes end with it."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the process: in order, or by force if it has not begun to serve, is unresponsive, or takes too long."""
        if self._process is not None:
            await self._process.close()
