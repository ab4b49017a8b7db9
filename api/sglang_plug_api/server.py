"""``sglang-plug serve``: start the engine, serve HTTP, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import uvicorn

from sglang_plug import (
    ConfigError,
    Facts,
    MediaProcessor,
    MediaSource,
    Observer,
    ObserverSpec,
    Plugins,
    RequestError,
    Tokenizer,
    TokenizerSource,
)
from sglang_plug.attribution import attributed, make, make_with_settings
from sglang_plug.collecting import collecting_later
from sglang_plug.engine.client import EngineClient, EngineError
from sglang_plug.engine.process import ProcessClient
from sglang_plug.engine.restart import RestartingClient

from .app import build_app
from .complaints import Complaints
from .config import ServerConfig
from .middleware import GateState
from .parsers import load_parsers
from .patience import http_protocol
from .plugin_table import plugin_table
from .pooling import probe
from .sight import Sight
from .start_checks import check_media_processor, check_paths, image_sources
from .text import TextEngine

logger = logging.getLogger(__name__)

FAILED_EXIT = 1
BROKEN = 500
"""Status of a request that failed though nothing was wrong with it."""
BACKLOG = 2048
POLL = 0.05
RESTARTS = 3
RESTARTS_WINDOW = 600.0
"""Seconds in which an engine may be started again ``RESTARTS`` times."""
WARM_UP = "The capital city of France is"
WARM_UP_TOKENS = 8
GRACE = 1
"""Seconds for answers to leave once the requests are done."""


def serve(config: ServerConfig, plugins: Plugins) -> int:
    """Serve until told to stop; returns the exit code. Raises ``ConfigError`` before anything is served."""
    level = config.engine.log_level.upper()
    logging.basicConfig(level=level, format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("torch").setLevel(logging.WARNING)  # as torch does once it is imported, which may be cut short
    return asyncio.run(_serve(config, plugins))


async def _serve(config: ServerConfig, plugins: Plugins) -> int:
    asyncio.get_running_loop().set_exception_handler(Complaints())
    check_paths(config)
    image_sources(config)
    with _bind(config) as listener:  # before the weights are loaded: a taken port is told at once
        client = make_client(config, plugins)
        try:
            info = await start_engine(client, config, plugins)
        except EngineError as error:
            logger.critical("the engine did not start: %s", error)
            return FAILED_EXIT
        try:
            engine = assemble(config, plugins, client, info)
            return await _Server(config, plugins, engine, listener).run()
        finally:
            await client.close()


async def start_engine(client: EngineClient, config: ServerConfig, plugins: Plugins) -> Mapping[str, Any]:
    """Start the engine; returns what it found. Meanwhile the tokenizer's code is imported: both take seconds."""
    importing = threading.Thread(target=_import_tokenizer, args=(config, plugins), name="import", daemon=True)
    if not config.skip_tokenizer_init:
        importing.start()
    info = await client.start()
    if importing.ident is not None:
        await asyncio.to_thread(importing.join)
    return info


def _import_tokenizer(config: ServerConfig, plugins: Plugins) -> None:
    """What is wrong with it is told once it is loaded, when all is known that it is chosen by."""
    with contextlib.suppress(Exception, SystemExit), collecting_later():
        plugins.resolve("tokenizer", config.engine.model.tokenizer_mode, Facts()).load()


def make_client(config: ServerConfig, plugins: Plugins) -> EngineClient:
    """The engine's process, not started; one that replaces itself if ``--engine-restart`` asks for it."""
    if not config.engine_restart:
        return ProcessClient(config.engine, plugins)
    return RestartingClient(lambda: ProcessClient(config.engine, plugins), most=RESTARTS, window=RESTARTS_WINDOW)


def assemble(config: ServerConfig, plugins: Plugins, client: EngineClient, info: Mapping[str, Any]) -> TextEngine:
    """The text side of a started engine: tokenizer, observers, plugin table."""
    tokenizer = None if config.skip_tokenizer_init else load_tokenizer(config, plugins, info)
    observers = load_observers(config, plugins)
    parsers = load_parsers(config, plugins, tokenizer)
    table = plugin_table(plugins)
    sight = load_sight(config, plugins, info)
    engine = TextEngine(
        config, client, info, tokenizer, observers=observers, plugins=table, parsers=parsers, sight=sight
    )
    facts = {**info, "served_model_name": engine.model_name, "log_interval": config.engine.schedule.log_interval}
    for name, observer in observers.items():
        with attributed(plugins.get("observer", name), "in on_start"):
            observer.on_start(facts)
    for watcher in engine.watchers:
        client.on_step(watcher.on_step)
    return engine


def load_tokenizer(config: ServerConfig, plugins: Plugins, info: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that fits the model. Raises ``ConfigError``."""
    component = plugins.resolve("tokenizer", config.engine.model.tokenizer_mode, Facts(device=str(info["device"])))
    path = Path(config.engine.model.tokenizer_path or info["checkpoint_path"])
    if not path.is_dir():
        raise ConfigError(f"--tokenizer-path {str(path)!r} is not a folder")
    source = TokenizerSource(path=path, chat_template=config.chat_template)
    tokenizer: Tokenizer = make(component, source, contract=Tokenizer)
    if tokenizer.vocab_size > info["vocab_size"]:
        logger.warning(
            "the tokenizer has %d tokens, the model only %d; tokens beyond are refused",
            tokenizer.vocab_size,
            info["vocab_size"],
        )
    return tokenizer


def load_sight(config: ServerConfig, plugins: Plugins, info: Mapping[str, Any]) -> Sight | None:
    """What makes prompts with images, if the model takes them. Raises ``ConfigError``."""
    check_media_processor(config, info)
    if "image" not in info.get("inputs", ()):
        return None
    model = SimpleNamespace(architectures=[info["architecture"]], model_type=info["model_type"])
    facts = Facts(device=str(info["device"]), model=model)
    component = plugins.resolve("media-processor", config.engine.model.media_processor, facts)
    source = MediaSource(path=Path(info["checkpoint_path"]), limits=config.media)
    processor: MediaProcessor = make(component, source, contract=MediaProcessor)
    return Sight(processor, config.media, image_sources(config))


def load_observers(config: ServerConfig, plugins: Plugins) -> dict[str, Observer]:
    """Every observer that is on by default or named. Raises ``ConfigError``."""
    for name in config.observers:
        plugins.get("observer", name)
    found: dict[str, Observer] = {}
    for name in plugins.names("observer"):
        component = plugins.get("observer", name)
        assert isinstance(component.spec, ObserverSpec)
        if component.spec.enabled or name in config.observers:
            found[name] = make_with_settings(component, base=Observer)
    return found


class _Server:
    """Runs uvicorn beside the engine until a signal or the engine's end."""

    def __init__(self, config: ServerConfig, plugins: Plugins, engine: TextEngine, listener: socket.socket) -> None:
        self._config, self._engine, self._listener = config, engine, listener
        self._gate = GateState()
        app = build_app(engine, plugins, self._gate)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                http=http_protocol(config.header_timeout, config.send_timeout),
                log_config=None,
                access_log=config.engine.log_level.lower() in ("info", "debug"),
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACE,
                server_header=False,
            ),
            self._stop,
        )
        self._stopping: asyncio.Task[None] | None = None
        self._code = 0

    async def run(self) -> int:
        """Serve; returns the exit code."""
        watch = asyncio.create_task(self._watch_engine())
        ready = asyncio.create_task(self._announce())
        try:
            await self._uvicorn.serve(sockets=[self._listener])
        finally:
            await self._end_requests()
            for task in (watch, ready):
                task.cancel()
            await asyncio.gather(watch, ready, return_exceptions=True)
            for watcher in self._engine.watchers:
                watcher.on_stop()
        return self._code

    async def _end_requests(self) -> None:
        """Cancel what did not end in time: nothing may use the engine once it is closed."""
        await asyncio.gather(*self._cancel_requests(), return_exceptions=True)

    def _cancel_requests(self) -> list[asyncio.Task[None]]:
        left = list(self._uvicorn.server_state.tasks)
        for task in left:
            task.cancel()
        return left

    def _stop(self) -> None:
        """Refuse what is new, wait for what is in flight, then end; a second signal ends at once."""
        if self._stopping is not None:
            self._cancel_requests()
            self._uvicorn.should_exit = True
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
        self._uvicorn.should_exit = True

    async def _watch_engine(self) -> None:
        reason = await self._engine.client.wait_failed()
        await self._fail(f"The engine failed: {reason}")

    async def _fail(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._code = FAILED_EXIT
        await asyncio.sleep(GRACE)  # requests in flight get their error, probes their 503
        self._uvicorn.should_exit = True

    async def _announce(self) -> None:
        while not self._uvicorn.started:
            await asyncio.sleep(POLL)
        if not self._config.skip_server_warmup and not await self._warmed_up():
            return
        gc.freeze()  # what is there stays; looking through it takes tenths of a second, in which nobody is served
        logger.info("The server is fired up and ready to roll!")
        print(_ready_text(self._engine, self._listener), flush=True)

    async def _warmed_up(self) -> bool:
        """Whether a first request was served, or refused for what only concerns itself.

        One that the engine did not survive is tried again if there will be another engine.
        """
        while True:
            try:
                await _warm_up(self._engine)
            except RequestError as error:
                if error.status == BROKEN:
                    await self._fail(f"the warm-up request failed, as every other would: {error}")
                    return False
                logger.warning("the warm-up request failed: %s", error)
            except Exception as error:
                logger.warning("the warm-up request failed: %s", error)
            if self._engine.client.failure is None:
                return True
            while self._engine.client.failure is not None:  # for ever, if the server ends
                await asyncio.sleep(POLL)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: new requests get an answer while old ones finish."""

    def __init__(self, config: uvicorn.Config, stop: Any) -> None:
        super().__init__(config)
        self._stop = stop
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in the signal handler."""
        self._loop.call_soon_threadsafe(self._stop)


async def _warm_up(engine: TextEngine) -> None:
    tokens = await engine.encode(WARM_UP) if engine.has_text else [0]
    await probe(engine, tokens, new_tokens=WARM_UP_TOKENS)
    with contextlib.suppress(Exception):
        await engine.client.control("flush_cache")


def _bind(config: ServerConfig) -> socket.socket:
    """A socket on the wanted address, not listening yet. Raises ``ConfigError`` if it is taken."""
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
            where = f"{config.host}:{config.port}"
            raise ConfigError(f"cannot listen on {where}: {error}; choose another {flag}") from error
        unless_bound.pop_all()
    return listener


def _ready_text(engine: TextEngine, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{shown}:{port}"
    lines = [f"sglang-plug serves {engine.model_name} at {url}"]
    if engine.has_text and "generate" in engine.info["tasks"]:
        body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
        key = " -H 'Authorization: Bearer YOUR_KEY'" if engine.config.api_keys else ""
        lines.append(f"Try:\n  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'")
    return "\n".join(lines)
