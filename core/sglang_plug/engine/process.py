"""The engine in a process of its own: what a server uses. ZeroMQ over unix sockets, msgpack, never pickle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from sglang_plug.config import EngineConfig
from sglang_plug.plugins import Plugins
from sglang_plug.private_folder import private_folder

from .client import EngineError
from .messages import Close, FromEngine, Launch, ToEngine
from .pending import Pending, PendingClient

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 20.0
"""Seconds the engine process has to end before it is killed."""
POLL = 0.2
SILENT = "the engine is stuck in code that keeps all of Python waiting (--watchdog-timeout); its process is ended"


ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""For glibc, unless the user has set it otherwise: huge pages, and keep freed memory.

With small pages, finding the pages of the weights takes a third of a decode step on a CPU. And by default every large
tensor of a step is mapped, zeroed by the kernel page by page and unmapped again: a fifth of a long prompt's time.
"""


class Silence:
    """How long a process has not touched its file, once it has begun to.

    Counted by looks, not by the clock: if both processes were stopped for a while, that is nobody's fault.

    Args:
        file: the file.
        most: seconds.
    """

    def __init__(self, file: Path, most: float) -> None:
        self._file, self._most = file, most
        self._touched, self._looks = 0, 0

    def is_too_long(self) -> bool:
        """To be asked every ``POLL`` seconds."""
        try:
            touched = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        self._looks = 0 if touched != self._touched else self._looks + 1
        self._touched = touched
        return self._looks * POLL > self._most


class ProcessClient(PendingClient):
    """An engine in a spawned process, which ends when this one does."""

    def __init__(self, config: EngineConfig, plugins: Plugins) -> None:
        super().__init__()
        self._config, self._fingerprint = config, plugins.fingerprint
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._context = zmq.asyncio.Context()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    async def start(self) -> Mapping[str, Any]:
        """Spawn the engine and wait until it can serve; returns its ``info``."""
        try:
            self._spawn()
            return await self._link.ready
        except BaseException:
            await self.close()
            raise

    def _spawn(self) -> None:
        self._folder = private_folder("sglang-plug-")  # nobody else may connect
        launch = Launch(
            self._config,
            list(self._fingerprint),
            f"ipc://{self._folder}/requests",
            f"ipc://{self._folder}/outputs",
            str(self._folder / "alive"),
        )
        requests = self._context.socket(zmq.PUSH)
        outputs = self._context.socket(zmq.PULL)
        for socket, address in ((requests, launch.requests), (outputs, launch.outputs)):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(address)
        # sent from the event loop: the plain socket's send never waits, as its queue has no limit
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(requests)
        self._pending = Pending(lambda message: self._send(plain, message))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sglang_plug.engine.worker"],
            stdin=subprocess.PIPE,
            env={**ALLOCATOR, **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(launch) + b"\n")  # kept open: its end tells the child to end
        self._process.stdin.flush()
        self._tasks = [asyncio.create_task(self._listen(outputs)), asyncio.create_task(self._watch())]

    def _send(self, socket: zmq.Socket[bytes], message: ToEngine) -> None:
        """Raises ``EngineError`` if nobody is there any more, which may show here first."""
        try:
            socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            gone = EngineError("the engine process is gone")
            if not self._closing:
                self._link.fail(gone)
            raise gone from None

    async def _listen(self, outputs: zmq.asyncio.Socket) -> None:
        while True:
            self._link.dispatch(self._decoder.decode(await outputs.recv()))

    async def _watch(self) -> None:
        """Notice the end of the process. Polled: child watchers need the main thread's loop."""
        assert self._process is not None and self._folder is not None
        silence = Silence(self._folder / "alive", self._config.schedule.watchdog_timeout)
        while (code := self._process.poll()) is None:
            await asyncio.sleep(POLL)
            if silence.is_too_long() and not self._closing:
                logger.critical("%s", SILENT)
                self._link.fail(EngineError(SILENT))
                self._process.send_signal(signal.SIGABRT)  # it writes its stacks without Python's help
                break
        code = await asyncio.to_thread(self._process.wait)
        await asyncio.sleep(POLL)  # what it said last may still be on its way
        if not self._closing:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._link.fail(EngineError(f"the engine process ended ({how})"))

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid if self._process is not None else None

    async def close(self) -> None:
        """End the process: kindly, then not."""
        self._closing = True
        process = self._process
        if process is not None:
            if process.poll() is None and self._pending is not None and self._pending.failure is None:
                with contextlib.suppress(EngineError):  # it is still starting, and listens to nothing but its pipe
                    self._pending.send(Close())
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            try:
                await asyncio.to_thread(process.wait, CLOSE_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
