"""The engine in a thread of this process: for offline use, notebooks and tests."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.serving.engine_client import EngineError
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import Close, Failed, FromEngine, ToEngine
from sglang_plug.engine.processes.serve import serve
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat, watch
from sglang_plug.plugins.lifecycle import ComponentLifecycle
from sglang_plug.plugins.registry import Plugins

from .pending import InFlightRequests, MessageClient

KILLED = "the engine was killed"


class QueueInbox:
    """An inbox for an engine in this process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()

    def put(self, message: ToEngine) -> None:
        """Add a message; may be called from any thread."""
        self._queue.put(message)

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Yield all messages that have arrived; if ``wait``, wait up to ``timeout`` seconds for at least one."""
        if wait:
            try:
                yield self._queue.get(timeout=timeout)
            except queue.Empty:
                return
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return


class ThreadClient(MessageClient):
    """An engine in a thread."""

    def __init__(self, config: EngineConfig, plugins: Plugins) -> None:
        super().__init__()
        self._config, self._plugins = config, plugins.with_own_lifecycle()
        self._inbox = QueueInbox()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unwatch: threading.Event | None = None

    async def start(self) -> Mapping[str, Any]:
        """Build the engine in its thread; return its ``info``."""
        self._loop = loop = asyncio.get_running_loop()
        self._pending = pending = InFlightRequests(self._inbox.put)
        heartbeat = Heartbeat()

        def send(message: FromEngine) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pending.dispatch, message)

        self._thread = threading.Thread(
            target=_serve,
            args=(self._config, self._plugins, self._inbox, send, heartbeat),
            name="engine",
            daemon=True,
        )
        self._thread.start()
        self._unwatch = watch(heartbeat, self._config.schedule.watchdog_timeout, lambda text: send(Failed(text)))
        try:
            return await pending.ready
        except BaseException:
            await self.close()
            raise

    def kill(self) -> None:
        """Let every request fail; the thread ends after its current step, since nothing can end it earlier."""
        if self._loop is not None and self._pending is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pending.fail, EngineError(KILLED))
        self._inbox.put(Close())

    async def close(self) -> None:
        """Stop the thread after its current step."""
        if self._thread is None:
            return
        self._inbox.put(Close())
        await asyncio.to_thread(self._thread.join)
        if self._unwatch is not None:
            self._unwatch.set()


def _serve(
    config: EngineConfig,
    plugins: Plugins,
    inbox: QueueInbox,
    send: Callable[[FromEngine], None],
    heartbeat: Heartbeat,
) -> None:
    def build() -> tuple[EngineLoop, ComponentLifecycle]:
        engine = build_engine(config, plugins, inbox, send, heartbeat, lost=lambda text: send(Failed(text)))
        return engine, plugins.lifecycle

    try:
        serve(build, send)
    finally:
        plugins.lifecycle.stop()
