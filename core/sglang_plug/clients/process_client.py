"""The engine in a process of its own, used by servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug.config import EngineConfig
from sglang_plug.plugins.registry import Plugins

from .engine_process import EngineProcess
from .pending import Pending, PendingClient


class ProcessClient(PendingClient):
    """An engine in a spawned process, which ends when this one does.

    Args:
        config: the engine's configuration.
        plugins: those of this process; the engine must see the same.
        cores: the CPU cores that the engine runs on; empty: any.
    """

    def __init__(self, config: EngineConfig, plugins: Plugins, cores: Sequence[int] = ()) -> None:
        super().__init__()
        self.process = EngineProcess(config, plugins, cores)

    async def start(self) -> Mapping[str, Any]:
        """Spawn the engine and wait until it can serve; return its ``info``."""
        try:
            self._pending = Pending(self.process.send)
            self.process.spawn(self._pending.dispatch, self._pending.fail)
            return await self._pending.ready
        except BaseException:
            await self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self.process.pid

    @property
    def silent_for(self) -> float:
        """Seconds since the last heartbeat of the process."""
        return self.process.silent_for

    def kill(self) -> None:
        """Kill the process; its child processes end with it."""
        self.process.kill()

    async def close(self) -> None:
        """End the process: in order, or by force if it has not begun to serve, is silent, or takes too long."""
        await self.process.close()
