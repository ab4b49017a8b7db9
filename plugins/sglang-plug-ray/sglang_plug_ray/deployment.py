"""``--deployment ray``: the server's engines are actors, which Ray places on the machines of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Any

from sglang_plug import ConfigError, EngineAddress, EngineClient, EngineError, EngineLaunch, RemoteClient, encode_launch

from .cluster import join, prepare
from .settings import Settings

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 8.0
"""Seconds that an engine has to end in order before its actor is killed."""
PLACEMENT_SECONDS = 10.0
"""Seconds after which the wait for a machine with room for an engine is logged."""


def deploy(launch: EngineLaunch, settings: Settings) -> EngineClient:
    """Return the client of an engine, not started."""
    prepare()
    actor = EngineActor(launch, settings)
    return RemoteClient(actor.connect, launch.plugins, actor.stop)


class EngineActor:
    """The actor of one engine, as the server's process sees it."""

    def __init__(self, launch: EngineLaunch, settings: Settings) -> None:
        self._launch, self._settings = launch, settings
        self._actor: Any = None

    async def connect(self, key: bytes) -> EngineAddress:
        """Start the engine on some machine; return its address. Raises ``ConfigError`` and ``EngineError``."""
        parallel = self._launch.config.parallel
        await asyncio.to_thread(join, self._settings, parallel.replicas)
        import ray
        from ray.exceptions import RayError

        from .engine_host import EngineHost, Refusal

        gpus = self._gpus(ray.cluster_resources())
        config = self._launch.config
        if gpus:  # Ray shows each actor the devices that it may use, as if they were the first ones
            config = replace(config, parallel=replace(parallel, replica=0))
        options = {"num_cpus": self._settings.engine_cpus, "num_gpus": gpus, "max_restarts": 0}
        try:
            self._actor = (
                ray.remote(EngineHost).options(**options).remote(encode_launch(replace(self._launch, config=config)))
            )
            started = await self._started(self._actor.start.remote(key), options)
        except RayError as error:
            raise EngineError(f"the engine's actor died while it started: {error}") from error
        if isinstance(started, Refusal):
            raise (ConfigError if started.is_configuration else EngineError)(started.message)
        return started

    async def _started(self, starting: Any, options: dict[str, Any]) -> Any:
        """Wait for the actor; say what it may wait for if Ray has found no machine for it."""
        waiting = asyncio.ensure_future(_result(starting))
        done, _ = await asyncio.wait((waiting,), timeout=PLACEMENT_SECONDS)
        if not done:
            logger.info("an engine is still starting, or Ray has no machine yet that has free: %s", options)
        return await waiting

    def _gpus(self, resources: dict[str, float]) -> float:
        if self._settings.engine_gpus is not None:
            return self._settings.engine_gpus
        is_cpu = self._launch.config.model.device == "cpu" or not resources.get("GPU")
        return 0.0 if is_cpu else float(self._launch.config.parallel.tp_size)

    async def stop(self) -> None:
        """End the engine and its actor."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        import ray
        from ray.exceptions import RayError

        if not ray.is_initialized():
            return
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await _result(actor.close.remote())
        ray.kill(actor)


async def _result(reference: Any) -> Any:
    """Wait for the result of an actor's method."""
    return await reference
