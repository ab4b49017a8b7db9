"""The engine process: ``python -m sglang_plug.engine.worker``, started by ``ProcessClient``."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import zmq

from sglang_plug.collecting import collecting_later
from sglang_plug.config import ConfigError
from sglang_plug.leaving import end_with_parent, leave
from sglang_plug.plugins import PluginError, Plugins
from sglang_plug.request import Finish, Output

from .fingerprint import compare
from .messages import Failed, FromEngine, Launch, News, Ready, ToEngine
from .watchdog import Heartbeat, watch

with collecting_later():  # torch comes with them
    from .build import build_engine
    from .grammar_guard import GrammarGuard
    from .grammars import TOO_SLOW

logger = logging.getLogger(__name__)

STUCK_EXIT, FAILED_EXIT, CONFIG_EXIT = 70, 1, 2
LINGER = 2000
"""Milliseconds for the last message to leave."""


class SocketInbox:
    """Messages that arrive on a ZeroMQ socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Everything that has arrived; if ``wait``, at least one message, unless none comes in ``timeout`` seconds."""
        if wait:
            if timeout is not None and not self._socket.poll(int(timeout * 1000)):
                return
            yield self._decoder.decode(self._socket.recv())
        while True:
            try:
                yield self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return


class Outbox:
    """Messages to the API process. The engine and the watchdog send, so one at a time."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket, self._lock = socket, threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: FromEngine) -> None:
        """Never waits: the queue has no limit, and the API process merges what its clients do not read."""
        with self._lock:
            self._socket.send(self._encoder.encode(message))


def main() -> int:
    """Serve until told to close, or until the parent process is gone."""
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    logging.basicConfig(level=launch.config.log_level.upper(), format="[%(asctime)s engine] %(message)s")
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent says when to stop
    end_with_parent(FAILED_EXIT)
    context = zmq.Context()
    requests, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, address in ((requests, launch.requests), (outputs, launch.outputs)):
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, LINGER)
        socket.connect(address)
    code = _serve(launch, SocketInbox(requests), Outbox(outputs))
    context.destroy(linger=LINGER)
    return code


def _serve(launch: Launch, inbox: SocketInbox, outbox: Outbox) -> int:
    heartbeat, guard = Heartbeat(), GrammarGuard()

    def stuck(text: str) -> None:
        if (asking := guard.asking()) is not None:  # who brings it again would bring the next engine down
            text += f": it waits for {asking}"
            finish = Finish("error", message=TOO_SLOW, status=400, about="constraint")
            outbox.send(News([Output(id=asking.sequence.request.id, finish=finish)]))
        logger.critical("%s", text)
        outbox.send(Failed(text))
        threading.Event().wait(1.0)
        os._exit(STUCK_EXIT)

    def lost(text: str) -> None:
        logger.critical("%s", text)
        outbox.send(Failed(text))
        threading.Event().wait(1.0)
        os._exit(FAILED_EXIT)

    describe: Callable[[BaseException], str] = repr
    try:
        plugins = Plugins.discover(launch.config.plugins)
        compare(plugins, launch.fingerprint, "the engine process")
        engine = build_engine(launch.config, plugins, inbox, outbox.send, heartbeat, lost=lost)
        del plugins
        alive = partial(Path(launch.alive).touch) if launch.alive else lambda: None
        watch(heartbeat, launch.config.schedule.watchdog_timeout, stuck, look=guard.look, alive=alive)
        gc.freeze()  # what is there by now stays: looking through it takes as long as many steps
        outbox.send(Ready(engine.info))
        describe = engine.describe
        engine.run()
    except ConfigError as error:
        if isinstance(error, PluginError) and error.__cause__ is not None:
            logger.error("%s", error, exc_info=error.__cause__)
        outbox.send(Failed(str(error), configuration=True))
        return CONFIG_EXIT
    except Exception as error:
        logger.exception("the engine failed")
        outbox.send(Failed(describe(error)))
        return FAILED_EXIT
    return 0


if __name__ == "__main__":
    leave(main())
