"""The engine process: ``python -m sglang_plug.engine.processes.worker``, started by ``EngineProcess``."""

from __future__ import annotations

import faulthandler
import gc
import logging
import math
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec
import zmq

from sglang_plug.contracts.request import Finish, Output
from sglang_plug.engine.messages.api_messages import Failed, FromEngine, Launch, StepOutputs, ToEngine
from sglang_plug.engine.watchdog import Heartbeat, find_blocking_request, run_checks, watch
from sglang_plug.plugins.installed.fingerprint import check_same_plugins
from sglang_plug.plugins.lifecycle import ComponentLifecycle
from sglang_plug.plugins.registry import Plugins
from sglang_plug.system.child_process import leave_signals_to_parent
from sglang_plug.system.gc_control import gc_paused
from sglang_plug.system.process_exit import ParentWatch, exit_process

from .serve import serve

with gc_paused():  # they import torch
    from sglang_plug.engine.extensions.server_points import WatchdogPoints
    from sglang_plug.engine.loop import EngineLoop
    from sglang_plug.engine.startup.build import build_engine

logger = logging.getLogger(__name__)

STUCK_EXIT, FAILED_EXIT, CONFIG_EXIT = 70, 1, 2
LINGER = 2000
"""Milliseconds for sending the last message."""


class SocketInbox:
    """An inbox that reads a ZeroMQ socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Yield all messages that have arrived; if ``wait``, wait up to ``timeout`` seconds for at least one."""
        if wait:
            if timeout is not None and not self._socket.poll(math.ceil(timeout * 1000)):
                return
            yield self._decoder.decode(self._socket.recv())
        while True:
            try:
                yield self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return


class Outbox:
    """Sends messages to the API process, one at a time, because engine and watchdog both send."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: FromEngine) -> None:
        """Send a message without waiting: the queue has no limit, and the API process merges unread outputs."""
        with self._lock:
            self._socket.send(self._encoder.encode(message))


def main() -> int:
    """Serve until a ``Close`` message arrives or the parent process ends."""
    leave_signals_to_parent()
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    name = f"engine DP{launch.config.parallel.replica}" if launch.config.parallel.replica else "engine"
    logging.basicConfig(level=launch.config.log_level.upper(), format=f"[%(asctime)s {name}] %(message)s")
    faulthandler.enable()
    lifecycle = ComponentLifecycle()
    parent = ParentWatch(FAILED_EXIT, lifecycle.stop)
    context = zmq.Context()
    requests, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, address in ((requests, launch.requests), (outputs, launch.outputs)):
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, LINGER)
        socket.connect(address)
    code = _serve(launch, SocketInbox(requests), Outbox(outputs), parent, lifecycle)
    context.destroy(linger=LINGER)
    return code


def _serve(
    launch: Launch, inbox: SocketInbox, outbox: Outbox, parent: ParentWatch, lifecycle: ComponentLifecycle
) -> int:
    heartbeat = Heartbeat()

    def end_process(status: int, text: str) -> None:
        logger.critical("%s", text)
        outbox.send(Failed(text))
        threading.Event().wait(1.0)
        parent.exit(status)

    def stuck(extensions: WatchdogPoints, text: str) -> None:
        if (blocking := find_blocking_request(extensions)) is not None:
            text += f": it waits for {blocking.description}"  # sent again, the request would block the next engine too
            finish = Finish("error", message=blocking.message, status=blocking.status, about=blocking.about)
            outbox.send(StepOutputs([Output(id=blocking.id, finish=finish)]))
        end_process(STUCK_EXIT, text)

    def build() -> tuple[EngineLoop, ComponentLifecycle]:
        plugins = Plugins.discover(launch.config.plugins, lifecycle)
        check_same_plugins(plugins.fingerprint, launch.fingerprint, "the engine process")
        lost = partial(end_process, FAILED_EXIT)
        engine = build_engine(launch.config, plugins, inbox, outbox.send, heartbeat, lost=lost)
        watch(
            heartbeat,
            launch.config.schedule.watchdog_timeout,
            partial(stuck, engine.extensions.watchdog),
            check=partial(run_checks, engine.extensions.watchdog),
            alive=partial(Path(launch.alive).touch) if launch.alive else lambda: None,
        )
        return engine, lifecycle

    try:  # objects that exist by now stay: scanning them takes as long as many steps
        failed = serve(build, outbox.send, before_ready=gc.freeze)
    finally:
        lifecycle.stop()
    return 0 if failed is None else CONFIG_EXIT if failed.configuration else FAILED_EXIT


if __name__ == "__main__":
    exit_process(main())
