"""The engine in a process of its own: what a server uses. ZeroMQ over unix sockets, msgpack, never pickle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from sglang_plug.config import EngineConfig
from sglang_plug.plugins import Plugins
from sglang_plug.policy import StepStats
from sglang_plug.request import Output, Request

from .client import EngineClient, EngineError
from .messages import Close, FromEngine, Launch, ToEngine
from .pending import Pending

CLOSE_TIMEOUT = 20.0
"""Seconds the engine process has to end before it is killed."""
POLL = 0.2


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


class ProcessClient(EngineClient):
    """An engine in a spawned process, which ends when this one does."""

    def __init__(self, config: EngineConfig, plugins: Plugins) -> None:
        self._config, self._fingerprint = config, plugins.fingerprint
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._context = zmq.asyncio.Context()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: Pending | None = None
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
        self._folder = Path(tempfile.mkdtemp(prefix="sglang-plug-"))  # mode 0700: nobody else may connect
        launch = Launch(
            self._config,
            list(self._fingerprint),
            f"ipc://{self._folder}/requests",
            f"ipc://{self._folder}/outputs",
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
        assert self._process is not None
        while (code := self._process.poll()) is None:
            await asyncio.sleep(POLL)
        await asyncio.sleep(POLL)  # what it said last may still be on its way
        if not self._closing:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._link.fail(EngineError(f"the engine process ended ({how})"))

    @property
    def _link(self) -> Pending:
        if self._pending is None:
            raise RuntimeError("the engine was not started: await client.start() first")
        return self._pending

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid if self._process is not None else None

    def submit(self, request: Request) -> AsyncIterator[Output]:
        """Serve a request; closing the iterator early aborts it."""
        return self._link.submit(request)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call between two steps."""
        return await self._link.control(name, arguments)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` after every step."""
        self._link.listen(listener)

    @property
    def failure(self) -> str | None:
        """Why the engine can serve no longer."""
        return self._link.failure

    async def wait_failed(self) -> str:
        """Returns when the engine has failed."""
        return await self._link.wait_failed()

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
