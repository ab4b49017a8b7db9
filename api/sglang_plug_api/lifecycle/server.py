"""``sglang-plug serve``: start the engine, serve HTTP, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from sglang_plug import (
    ConfigError,
    EngineClient,
    EngineError,
    Facts,
    MediaProcessor,
    MediaSource,
    Observer,
    ObserverSpec,
    Plugins,
)
from sglang_plug.engine.startup.plugin_fingerprint import check_engine_plugins
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.system.freed_memory import return_large_blocks
from sglang_plug_api.batches.storage import load_storage
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.connection_limit import ConnectionLimit
from sglang_plug_api.http.connection_timeouts import TimeoutProtocol, http_protocol
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.multimodal.image_prompts import ImagePrompts
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.fairness_key import with_caller_weights
from sglang_plug_api.text.parsers import load_parsers
from sglang_plug_api.text.request_fields import request_fields
from sglang_plug_api.text.text_engine import TextEngine

from .asyncio_exceptions import AsyncioExceptions
from .engine_clients import engine_is_in_process, make_client
from .open_files import max_connections, raise_limit
from .plugin_table import plugin_table
from .shutdown import SHUTDOWN_GRACE, Shutdown
from .start_checks import check_media_processor, check_names, check_paths, image_sources
from .start_report import limits_line, server_args_line, start_report
from .tokenizer_loading import EarlyTokenizer, load_tokenizer
from .warm_up import WarmUpError, warm_up_until_served

logger = logging.getLogger(__name__)

FAILED_EXIT = 1
BACKLOG = 2048
POLL = 0.05
GRACE = 1
"""Seconds for sending responses after the last request has ended."""


def serve(config: ServerConfig, plugins: Plugins) -> int:
    """Serve until a signal; return the exit code. Raises ``ConfigError`` before the server listens."""
    level = config.engine.log_level.upper()
    logging.basicConfig(level=level, format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("torch").setLevel(logging.WARNING)  # torch sets it only at the end of its import
    raise_limit()
    started = time.monotonic()
    with Shutdown() as shutdown:
        return asyncio.run(_serve(config, plugins, shutdown, started))


async def _serve(config: ServerConfig, plugins: Plugins, shutdown: Shutdown, started: float) -> int:
    asyncio.get_running_loop().set_exception_handler(AsyncioExceptions())
    check_paths(config)
    config = with_caller_weights(config)
    image_sources(config)
    check_names(config, plugins)
    request_fields(plugins)  # a clash is told before anything is loaded
    observers = load_observers(config, plugins)
    with _bind(config) as listener:  # a taken port is reported before the weights are loaded
        logger.info("%s", server_args_line(config))
        client = make_client(config, plugins)
        shutdown.kill = client.kill
        try:
            is_early = not (config.skip_tokenizer_init or engine_is_in_process(config, plugins))
            early = EarlyTokenizer(config, plugins) if is_early else None
            starting = asyncio.create_task(start_engine(client, early), name="start")
            shutdown.on_signal(partial(_stop_start, starting, shutdown))
            try:
                info = await starting
            except EngineError as error:
                logger.critical("the engine did not start: %s", error)
                return FAILED_EXIT
            engine = assemble(config, plugins, client, info, early=early, observers=observers)
            logger.info("%s", limits_line(info))
            logger.info("%s", start_report(config, plugins, info, engine.model_name))
            server = _Server(config, plugins, engine, listener, shutdown, started)
            components = asyncio.create_task(start_components(engine, plugins), name="start components")
            shutdown.on_signal(partial(_stop_start, components, shutdown))
            await components
            return await server.run()
        except asyncio.CancelledError:
            if not shutdown.signals:
                raise
            logger.info("Stopped before the server was ready")
            return shutdown.exit_code
        finally:
            shutdown.expect_end()
            shutdown.on_signal(client.kill)
            await plugins.lifecycle.stop_async()
            await client.close()


def _stop_start(starting: asyncio.Task[Any], shutdown: Shutdown) -> None:
    """Cancel the start; a second signal ends the engine at once."""
    starting.cancel()
    if shutdown.signals > 1:
        shutdown.kill()


async def start_engine(client: EngineClient, early: EarlyTokenizer | None) -> Mapping[str, Any]:
    """Start the engine and load the tokenizer meanwhile, if it may be; return the engine's description of itself.

    Raises ``ConfigError`` if either fails, without waiting for the other one, and ``EngineError``.
    """
    if early is None:  # two threads that import the same libraries would meet unfinished modules
        return await client.start()
    early.start()
    starting = asyncio.create_task(client.start(), name="engine client")
    try:
        while not starting.done():
            early.check()
            await asyncio.wait((starting,), timeout=POLL)
        info = starting.result()
        while early.is_loading:  # polled: a thread that waits for it would keep a stopped server from ending
            await asyncio.sleep(POLL)
        early.check()
        return info
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def assemble(
    config: ServerConfig,
    plugins: Plugins,
    client: EngineClient,
    info: Mapping[str, Any],
    *,
    early: EarlyTokenizer | None = None,
    observers: Mapping[str, Observer] | None = None,
) -> TextEngine:
    """Build the text side of a started engine: tokenizer, observers, plugin table; parts made earlier are reused.

    Raises ``ConfigError`` if the engine has other plugins than this process.
    """
    check_engine_plugins(plugins, info)
    tokenizer = None if config.skip_tokenizer_init else load_tokenizer(config, plugins, info, early)
    observers = load_observers(config, plugins) if observers is None else observers
    parsers = load_parsers(config, plugins, tokenizer)
    table = plugin_table(plugins)
    image_prompts = load_image_prompts(config, plugins, info)
    engine = TextEngine(
        config,
        client,
        info,
        tokenizer,
        storage=load_storage(config, plugins),
        observers=observers,
        plugins=table,
        parsers=parsers,
        image_prompts=image_prompts,
        request_fields=request_fields(plugins),
    )
    return engine


async def start_components(engine: TextEngine, plugins: Plugins) -> None:
    """Start the components of this process that hold resources. Raises ``PluginError`` for one that fails."""
    interval = engine.config.engine.schedule.log_interval
    await plugins.lifecycle.start_async(
        {**engine.info, "served_model_name": engine.model_name, "log_interval": interval}
    )
    for observer in engine.guarded_observers:
        engine.client.on_step(observer.on_step)


def load_image_prompts(config: ServerConfig, plugins: Plugins, info: Mapping[str, Any]) -> ImagePrompts | None:
    """Return the maker of prompts with images, if the model takes images. Raises ``ConfigError``."""
    check_media_processor(config, info)
    if "image" not in info.get("inputs", ()):
        return None
    model = SimpleNamespace(architectures=[info["architecture"]], model_type=info["model_type"])
    facts = Facts(device=str(info["device"]), model=model)
    component = plugins.resolve("media-processor", config.engine.model.media_processor, facts)
    source = MediaSource(path=Path(info["checkpoint_path"]), limits=config.media)
    processor: MediaProcessor = make_with_settings(component, source, contract=MediaProcessor)
    return_large_blocks()
    return ImagePrompts(processor, config.media, image_sources(config))


def load_observers(config: ServerConfig, plugins: Plugins) -> dict[str, Observer]:
    """Load every observer that is on by default or chosen. Raises ``ConfigError``."""
    for name in config.observers:
        plugins.get("observer", name)
    observers: dict[str, Observer] = {}
    for name in plugins.names("observer"):
        component = plugins.get("observer", name)
        assert isinstance(component.spec, ObserverSpec)
        if component.spec.enabled or name in config.observers:
            observers[name] = make_with_settings(component, base=Observer)
    return observers


class _Server:
    """Runs uvicorn beside the engine until a signal or until the engine fails."""

    def __init__(
        self,
        config: ServerConfig,
        plugins: Plugins,
        engine: TextEngine,
        listener: socket.socket,
        shutdown: Shutdown,
        started: float,
    ) -> None:
        self._started = started
        self._config, self._engine, self._listener = config, engine, listener
        self._shutdown = shutdown
        self._gate = GateState()
        app = build_app(engine, plugins, self._gate)
        self._has_page = any(getattr(route, "path", "") == "/" for route in app.routes)
        limit = ConnectionLimit(max_connections(config.max_connections))
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                http=http_protocol(config.header_timeout, config.send_timeout, limit),
                ws="none",
                log_config=None,
                access_log=config.engine.log_level.lower() in ("info", "debug"),
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACE,
                server_header=False,
            )
        )
        self._stopping: asyncio.Task[None] | None = None
        self._code = 0

    async def run(self) -> int:
        """Serve; return the exit code."""
        watch = asyncio.create_task(self._watch_engine(), name="watch engine")
        ready = asyncio.create_task(self._announce(), name="warm-up")
        self._shutdown.drain_timeout = self._config.drain_timeout
        self._shutdown.on_signal(self._stop)
        self._engine.warming_up = not self._config.skip_server_warmup
        try:
            await self._uvicorn.serve(sockets=[self._listener])
        finally:
            await self._end_requests()
            for task in (watch, ready):
                task.cancel()
            await asyncio.gather(watch, ready, return_exceptions=True)
        return self._code

    async def _end_requests(self) -> None:
        """Cancel the remaining requests: none may use the engine once it is closed."""
        await asyncio.gather(*self._cancel_requests(), return_exceptions=True)

    def _cancel_requests(self) -> list[asyncio.Task[None]]:
        tasks = list(self._uvicorn.server_state.tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def _stop(self) -> None:
        """Refuse new requests, wait for those in flight, then end; a second signal ends at once."""
        if self._stopping is not None:
            self._cancel_requests()
            self._exit()
            return
        logger.info("Shutting down: %d requests in flight", self._gate.in_flight)
        self._gate.closing = True
        self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._config.drain_timeout):
                while self._gate.in_flight:
                    await asyncio.sleep(POLL)
        except TimeoutError:
            logger.warning("%d requests did not end in time and are aborted", self._gate.in_flight)
        self._exit()

    def _exit(self) -> None:
        """Let uvicorn end; the system takes all unsent bytes, since nobody can send them later."""
        for connection in list(self._uvicorn.server_state.connections):
            if isinstance(connection, TimeoutProtocol):
                connection.lift_unsent_limit()
        self._uvicorn.should_exit = True

    async def _watch_engine(self) -> None:
        reason = await self._engine.client.wait_failed()
        await self._fail(f"The engine failed: {reason}")

    async def _fail(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._code = FAILED_EXIT
        self._shutdown.expect_end(GRACE + SHUTDOWN_GRACE)
        await asyncio.sleep(GRACE)  # requests in flight get their error, and probes status 503
        self._exit()

    async def _announce(self) -> None:
        while not self._uvicorn.started:
            await asyncio.sleep(POLL)
        logger.info("Uvicorn running on %s (Press CTRL+C to quit)", _address(self._listener))
        if not self._config.skip_server_warmup:
            try:
                await warm_up_until_served(self._engine)
            except WarmUpError as error:
                await self._fail(str(error))
                return
            self._engine.warming_up = False
        gc.freeze()  # a collection of the long-lived objects would block all requests for tenths of a second
        self._engine.startup_time = round(time.monotonic() - self._started, 3)
        logger.info("The server is fired up and ready to roll!")
        print(_ready_text(self._engine, self._listener, self._has_page), flush=True)


class _Uvicorn(uvicorn.Server):
    """Uvicorn's server without signal handlers: ``Shutdown`` handles signals, so that running requests can finish."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def _bind(config: ServerConfig) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises ``ConfigError`` if the address is taken."""
    with contextlib.ExitStack() as unless_bound:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = unless_bound.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            flag = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
            address_text = f"{config.host}:{config.port}"
            raise ConfigError(f"cannot listen on {address_text}: {error}; choose another {flag}") from error
        unless_bound.pop_all()
    return listener


def _address(listener: socket.socket) -> str:
    """Return the address that a browser on this machine opens."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _ready_text(engine: TextEngine, listener: socket.socket, has_page: bool) -> str:
    url = _address(listener)
    lines = [f"sglang-plug serves {engine.model_name} at {url}"]
    if has_page:
        lines.append(f"Open {url}/ in a browser.")
    if engine.has_text and "generate" in engine.info["tasks"]:
        body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
        key = " -H 'Authorization: Bearer YOUR_KEY'" if engine.config.api_keys else ""
        lines.append("Try it in another terminal:")
        lines.append(f"  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'")
    return "\n".join(lines)
