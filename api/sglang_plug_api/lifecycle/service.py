"""A server without its socket: what ``sglang-plug serve``, commands with a local server, and other platforms run."""

from __future__ import annotations

import asyncio
import logging

from fastapi import FastAPI

from sglang_plug import EngineClient, Plugins
from sglang_plug_api.engine_clients.make_client import engine_is_in_process, make_client
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.request_fields import request_fields
from sglang_plug_api.service.fairness_key import with_caller_weights
from sglang_plug_api.text.text_engine import TextEngine

from .assembly import assemble, load_observers, start_components, start_engine
from .start_checks import check_names, check_paths, image_sources
from .start_report import limits_line, start_report
from .tokenizer_loading import EarlyTokenizer
from .warm_up import warm_up_until_served

logger = logging.getLogger(__name__)

POLL = 0.05


class Service:
    """Engines, components and the ASGI application, from their start to their end, in one event loop.

    Whoever listens calls the methods in this order: ``start``, whose application is served from then on; ``ready``;
    at the end ``drain``, ``drained``, and, once nothing is sent any more, ``stop``. ``stop`` may be called at any time.

    Args:
        config: the options of the server.
        plugins: the plugins to load.
        client: reaches the engines, not started; ``None``: the one that ``config`` describes.

    Raises ``ConfigError`` for what can be refused before an engine is started.
    """

    def __init__(self, config: ServerConfig, plugins: Plugins, client: EngineClient | None = None) -> None:
        check_paths(config)
        self.config, self._plugins = with_caller_weights(config), plugins
        image_sources(config)
        check_names(config, plugins)
        request_fields(plugins)  # a clash is told before anything is loaded
        self._observers = load_observers(config, plugins)
        loads_early = not (config.skip_tokenizer_init or engine_is_in_process(config, plugins))
        self._early = EarlyTokenizer(self.config, plugins) if loads_early else None
        self._gate = GateState()
        self._engine: TextEngine | None = None
        self.client = make_client(self.config, plugins) if client is None else client

    @property
    def engine(self) -> TextEngine:
        """The model in terms of text, once the service has started."""
        if self._engine is None:
            raise RuntimeError("the service was not started: await service.start() first")
        return self._engine

    @property
    def in_flight(self) -> int:
        """Number of HTTP requests that are being answered."""
        return self._gate.in_flight

    async def start(self) -> FastAPI:
        """Start the engines and the components; return the application, whose lifespan the caller runs.

        Raises ``EngineError`` if no engine starts, and ``ConfigError``.
        """
        info = await start_engine(self.client, self._early)
        engine = assemble(
            self.config,
            self._plugins,
            self.client,
            info,
            warming_up=not self.config.skip_server_warmup,
            early=self._early,
            observers=self._observers,
        )
        logger.info("%s", limits_line(info))
        logger.info("%s", start_report(self.config, self._plugins, info, engine.model_name))
        app = build_app(engine, self._plugins, self._gate)
        await start_components(engine, self._plugins)
        self._engine = engine
        return app

    async def ready(self) -> None:
        """Warm up, unless that is skipped; health checks succeed from then on.

        Raises ``WarmUpError`` if no request will be served.
        """
        state = self.engine.server.state
        if state.warming_up:
            await warm_up_until_served(self.engine)
        state.warming_up = False

    async def failed(self) -> str:
        """Wait until no engine can serve for good; return the reason."""
        return await self.client.wait_failed()

    def drain(self) -> None:
        """Refuse new requests from now on; those in flight go on."""
        self._gate.closing = True

    async def drained(self) -> None:
        """Wait until no request is in flight, at most ``config.drain_timeout`` seconds."""
        try:
            async with asyncio.timeout(self.config.drain_timeout):
                while self.in_flight:
                    await asyncio.sleep(POLL)
        except TimeoutError:
            logger.warning("%d requests did not end in time and are aborted", self.in_flight)

    def cancel(self) -> list[asyncio.Task[object]]:
        """Abort the requests in flight: they are told why if the service drains. Return their tasks."""
        tasks = self._gate.tasks
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        """End requests that are left, then stop components and engines. Waits for all of them."""
        self.drain()
        await asyncio.gather(*self.cancel(), return_exceptions=True)
        await self._plugins.lifecycle.stop_async()
        await self.client.close()
