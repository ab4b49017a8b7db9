"""The actor in which an engine runs: ``--deployment ray`` starts one for each engine."""

from __future__ import annotations

from dataclasses import dataclass

import ray

from sglang_plug import ConfigError, EngineAddress, EngineError, EngineServer, decode_launch


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why an engine did not start."""

    message: str
    is_configuration: bool
    """True if the user's configuration is to blame."""


class EngineHost:
    """Starts an engine in a process of its own, and lets one client connect to it.

    Undecorated, so that Ray imports the class where it runs, instead of pickling it.

    Args:
        launch: the engine, as ``encode_launch`` wrote it.
    """

    def __init__(self, launch: bytes) -> None:
        self._launch = launch
        self._server: EngineServer | None = None

    async def start(self, key: bytes) -> EngineAddress | Refusal:
        """Start the engine; return its address for the client with this public key, once it serves."""
        try:
            self._server = EngineServer(decode_launch(self._launch), ray.util.get_node_ip_address())
            await self._server.start()
        except (ConfigError, EngineError) as error:
            return Refusal(str(error), isinstance(error, ConfigError))
        return self._server.admit(key)

    async def close(self) -> None:
        """Stop the engine, and wait until it is gone."""
        if self._server is not None:
            await self._server.close()
