"""The process of an engine, and its sockets: ZeroMQ over unix sockets, msgpack, never pickle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

import msgspec
import zmq
import zmq.asyncio

from sglang_plug.config import EngineConfig
from sglang_plug.contracts.serving.engine_client import EngineError
from sglang_plug.engine.messages.api_messages import Close, Failed, FromEngine, Launch, Ready, ToEngine
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.child_process import child_environment, end_child, python_command, start_child
from sglang_plug.system.private_folder import private_folder

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0
"""Seconds that the engine process has to end in order before it is killed."""
ABORT_TIMEOUT = 3.0
"""Seconds that an unresponsive engine has to write its stacks before it is killed; a stopped one cannot write."""
UNRESPONSIVE_AFTER = 3.0
"""Seconds without a heartbeat after which an engine is killed at the end, without asking it to close."""
POLL = 0.2
CLOSE_POLL = 0.02
UNRESPONSIVE = "the engine is stuck in code that keeps all of Python waiting (--watchdog-timeout); its process is ended"


ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Environment variables for glibc, unless the user has set them: use huge pages, and keep freed memory.

With small pages, finding the pages of the weights takes a third of a decode step on a CPU. And by default every large
tensor of a step is mapped, zeroed by the kernel page by page and unmapped again: a fifth of a long prompt's time.
"""


THREADS = "OMP_NUM_THREADS"
"""Environment variable of the number of threads that torch computes with; one that the user has set is kept."""


class HeartbeatMonitor:
    """Measures the time since a process last touched its file, once it has begun to.

    The time is counted in checks, not by the clock, so that it does not grow while both processes are stopped.

    Args:
        file: the file.
        timeout: seconds without a touch after which the process counts as stuck.
    """

    def __init__(self, file: Path, timeout: float) -> None:
        self._file, self._timeout = file, timeout
        self._touched, self._unchanged_checks = 0, 0

    @property
    def seconds(self) -> float:
        """Seconds without a touch at the latest check."""
        return self._unchanged_checks * POLL

    def is_expired(self) -> bool:
        """Check the file; report whether the process counts as stuck. Must be called every ``POLL`` seconds."""
        try:
            touched = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        self._unchanged_checks = 0 if touched != self._touched else self._unchanged_checks + 1
        self._touched = touched
        return self.seconds > self._timeout


class EngineProcess:
    """A running engine process, and the messages to and from it. It ends when this process does.

    Constructed and used in one event loop; only ``kill`` may be called from any thread.

    Args:
        config: the engine's configuration.
        plugins: those of this process; the engine must see the same.
        cores: the CPU cores that the engine runs on; empty: any.
        dispatch: gets every message of the engine.
        fail: gets the error if the process ends or is stuck without telling why.
    """

    def __init__(
        self,
        config: EngineConfig,
        plugins: Plugins,
        cores: Sequence[int],
        *,
        dispatch: Callable[[FromEngine], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._dispatch, self._fail = dispatch, fail
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._closing = self._serves = self._failed = False
        with ExitStack() as unless_started:
            self._folder = private_folder("sglang-plug-")  # nobody else may connect
            unless_started.callback(self._folder.close)
            self._context = zmq.asyncio.Context()
            unless_started.callback(self._context.destroy, linger=0)
            requests, outputs = (f"ipc://{self._folder.path}/{name}" for name in ("requests", "outputs"))
            alive = self._folder.path / "alive"
            # sent from the event loop: the plain socket's send never waits, as its queue has no limit
            self._requests: zmq.Socket[bytes] = zmq.Socket.shadow(_bound(self._context, zmq.PUSH, requests))
            socket = _bound(self._context, zmq.PULL, outputs)
            self._heartbeat = HeartbeatMonitor(alive, config.schedule.watchdog_timeout)
            self._process = _start(Launch(config, list(plugins.fingerprint), requests, outputs, str(alive)), cores)
            unless_started.pop_all()
        self._tasks = [asyncio.create_task(self._listen(socket)), asyncio.create_task(self._watch())]

    def send(self, message: ToEngine) -> None:
        """Send a message. Raises ``EngineError`` if the process has ended, which may be noticed here first."""
        if self._requests.closed:
            raise EngineError("the engine process was closed")
        try:
            self._requests.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            error = EngineError("the engine process has ended")
            self._end_with(error)
            raise error from None

    async def _listen(self, outputs: zmq.asyncio.Socket) -> None:
        while True:
            data = await outputs.recv()
            try:
                message = self._decoder.decode(data)
                self._serves |= isinstance(message, Ready)
                self._failed |= isinstance(message, Failed)
                self._dispatch(message)
            except Exception as error:  # requests that are never answered would wait for ever
                logger.exception("A message from the engine could not be handled; the engine is stopped")
                self._end_with(EngineError(f"internal error: a message from the engine could not be handled: {error}"))
                return

    async def _watch(self) -> None:
        """Watch for the end of the process, by polling: child watchers need the main thread's loop."""
        process = self._process
        while process.poll() is None:
            await asyncio.sleep(POLL)
            if self._heartbeat.is_expired() and not self._closing:
                logger.critical("%s", UNRESPONSIVE)
                self._end_with(EngineError(UNRESPONSIVE))
                process.send_signal(signal.SIGABRT)  # it writes its stacks without Python's help
                await _end(process, ABORT_TIMEOUT)
        await asyncio.sleep(POLL)  # its last messages may still be on their way
        code = process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._end_with(EngineError(f"the engine process ended ({how})"))

    def _end_with(self, error: EngineError) -> None:
        self._failed = True
        if not self._closing:
            self._fail(error)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the process."""
        return 0.0 if self._failed else self._heartbeat.seconds

    def kill(self) -> None:
        """Kill the process; its child processes end with it."""
        self._process.kill()
        self._folder.close()

    async def close(self) -> None:
        """End the process: in order, or by force if it has not begun to serve, is unresponsive, or takes too long."""
        self._closing = True
        try:
            await self._close_process(self._process)
        finally:
            await self._forget()

    async def _close_process(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None and not self._failed:
            with contextlib.suppress(EngineError):  # it is still starting, and reads only its pipe
                self.send(Close())
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        is_unresponsive = self._heartbeat.seconds > UNRESPONSIVE_AFTER
        await _end(process, 0.0 if is_unresponsive or not self._serves else CLOSE_TIMEOUT)

    async def _forget(self) -> None:
        """Stop listening to the process, and free its resources."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        self._folder.close()


def _bound(context: zmq.asyncio.Context, kind: int, address: str) -> zmq.asyncio.Socket:
    """Return a socket without a limit of its queue that listens at ``address``."""
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(address)
    return socket


def _start(launch: Launch, cores: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the process on the CPU cores ``cores``, or on any if it is empty."""
    threads = {THREADS: str(len(cores))} if cores else {}
    process = start_child(
        python_command("sglang_plug.engine.processes.worker"),
        environment={**ALLOCATOR, **threads, **child_environment()},
    )
    try:
        if cores:  # before the child has imported a library that counts the cores
            os.sched_setaffinity(process.pid, cores)
        pipe = cast(IO[bytes], process.stdin)
        pipe.write(msgspec.json.encode(launch) + b"\n")  # kept open: its end tells the child to end
        pipe.flush()
    except BaseException:
        end_child(process)
        raise
    return process


async def _end(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Wait until ``process`` ends; kill it after ``timeout`` seconds, or if the wait is cancelled.

    Waits by polling: waiting threads would keep this process from ending, and could be unavailable if all are busy.
    """
    deadline = time.monotonic() + timeout
    try:
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(CLOSE_POLL)
    finally:
        if process.poll() is None:
            process.kill()
    while process.poll() is None:
        await asyncio.sleep(CLOSE_POLL)
