"""``sglang-plug serve``: start the engine, serve HTTP, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.routing import Match

from sglang_plug import ConfigError, EngineError, Plugins
from sglang_plug_api.http.connection_limit import ConnectionLimit
from sglang_plug_api.http.connection_timeouts import TimeoutProtocol, http_protocol
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.text.text_engine import TextEngine

from .asyncio_exceptions import AsyncioExceptions
from .open_files import max_connections, raise_limit
from .service import Service
from .shutdown import SHUTDOWN_GRACE, Shutdown
from .start_report import server_args_line
from .warm_up import WarmUpError

logger = logging.getLogger(__name__)

FAILED_EXIT = 1
BACKLOG = 2048
POLL = 0.05
GRACE = 1
"""Seconds for sending responses after the last request has ended."""


def announce_server(text: str) -> None:
    """Print where the server serves. From now on the garbage collector ignores what has been loaded."""
    gc.freeze()  # a collection of the long-lived objects would block all requests for tenths of a second
    print(text, flush=True)


def serve(
    config: ServerConfig,
    plugins: Plugins,
    *,
    shutdown: Shutdown | None = None,
    announce: Callable[[str], None] = announce_server,
) -> int:
    """Serve until a signal; return the exit code. Raises ``ConfigError`` before the server listens.

    ``shutdown`` is for a caller that stops the server otherwise. ``announce`` gets the text that tells where it serves,
    when the server is ready.
    """
    level = config.engine.log_level.upper()
    logging.basicConfig(level=level, format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("torch").setLevel(logging.WARNING)  # torch sets it only at the end of its import
    raise_limit()
    started = time.monotonic()
    with shutdown or Shutdown() as handled:
        return asyncio.run(_serve(config, plugins, handled, announce, started))


async def _serve(
    config: ServerConfig, plugins: Plugins, shutdown: Shutdown, announce: Callable[[str], None], started: float
) -> int:
    asyncio.get_running_loop().set_exception_handler(AsyncioExceptions())
    service = Service(config, plugins)
    shutdown.kill = service.client.kill
    try:
        with _bind(config) as listener:  # a taken port is reported before the weights are loaded
            logger.info("%s", server_args_line(config))
            starting = asyncio.create_task(service.start(), name="start")
            shutdown.on_signal(partial(_stop_start, starting, shutdown))
            try:
                app = await starting
            except EngineError as error:
                logger.critical("the engine did not start: %s", error)
                return FAILED_EXIT
            return await _Server(service, app, listener, shutdown, announce, started).run()
    except asyncio.CancelledError:
        if not shutdown.signals:
            raise
        logger.info("Stopped before the server was ready")
        return shutdown.exit_code
    finally:
        shutdown.expect_end()
        shutdown.on_signal(service.client.kill)
        await service.stop()


def _stop_start(starting: asyncio.Task[Any], shutdown: Shutdown) -> None:
    """Cancel the start; a second signal ends the engine at once."""
    starting.cancel()
    if shutdown.signals > 1:
        shutdown.kill()


class _Server:
    """Runs uvicorn together with the service until a signal or until the engine fails."""

    def __init__(
        self,
        service: Service,
        app: FastAPI,
        listener: socket.socket,
        shutdown: Shutdown,
        announce: Callable[[str], None],
        started: float,
    ) -> None:
        self._service = service
        self._listener = listener
        self._shutdown = shutdown
        self._announce = announce
        self._started = started
        self._has_page = _has_page(app)
        config = service.config
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
        ready = asyncio.create_task(self._get_ready(), name="warm-up")
        self._shutdown.drain_timeout = self._service.config.drain_timeout
        self._shutdown.on_signal(self._stop)
        try:
            await self._uvicorn.serve(sockets=[self._listener])
        finally:
            await asyncio.gather(*self._service.cancel(), return_exceptions=True)  # none may use a closed engine
            for task in (watch, ready):
                task.cancel()
            await asyncio.gather(watch, ready, return_exceptions=True)
        return self._code

    def _stop(self) -> None:
        """Refuse new requests, wait for those in flight, then end; a second signal ends at once."""
        if self._stopping is not None:
            self._service.cancel()
            self._exit()
            return
        logger.info("Shutting down: %d requests in flight", self._service.in_flight)
        self._service.drain()
        self._stopping = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._service.drained()
        self._exit()

    def _exit(self) -> None:
        """Let uvicorn end; the system takes all unsent bytes, since nobody can send them later."""
        for connection in list(self._uvicorn.server_state.connections):
            if isinstance(connection, TimeoutProtocol):
                connection.lift_unsent_limit()
        self._uvicorn.should_exit = True

    async def _watch_engine(self) -> None:
        reason = await self._service.failed()
        await self._fail(f"The engine failed: {reason}")

    async def _fail(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._code = FAILED_EXIT
        self._shutdown.expect_end(GRACE + SHUTDOWN_GRACE)
        await asyncio.sleep(GRACE)  # requests in flight get their error, and probes status 503
        self._exit()

    async def _get_ready(self) -> None:
        while not self._uvicorn.started:
            await asyncio.sleep(POLL)
        logger.info("Uvicorn running on %s (Press CTRL+C to quit)", _address(self._listener))
        try:
            await self._service.ready()
        except WarmUpError as error:
            await self._fail(str(error))
            return
        engine = self._service.engine
        engine.server.state.startup_time = round(time.monotonic() - self._started, 3)
        logger.info("The server is fired up and ready to roll!")
        self._announce(_ready_text(engine, self._listener, self._has_page))


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


def _has_page(app: FastAPI) -> bool:
    """Return whether a browser finds something at ``/``."""
    scope = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


def _address(listener: socket.socket) -> str:
    """Return the address that a browser on this machine opens."""
    host, port = listener.getsockname()[:2]
    browser_host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{browser_host}:{port}"


def _ready_text(engine: TextEngine, listener: socket.socket, has_page: bool) -> str:
    url = _address(listener)
    lines = [f"sglang-plug serves {engine.model_name} at {url}"]
    if engine.config.role == "prefill":
        return "\n".join([*lines, f"Decode servers connect with --prefill-servers {engine.info['prefill_address']}"])
    if has_page:
        lines.append(f"Open {url}/ in a browser.")
    if engine.encoder.has_tokenizer and "generate" in engine.info["tasks"]:
        body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
        key = " -H 'Authorization: Bearer YOUR_KEY'" if engine.config.api_keys else ""
        lines.append("Try it in another terminal:")
        lines.append(f"  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'")
    return "\n".join(lines)
