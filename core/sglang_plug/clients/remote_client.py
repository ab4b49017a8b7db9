"""The client of an engine in another process or on another machine, see ``remote_server``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from sglang_plug.contracts.serving.engine_client import EngineAddress, EngineError
from sglang_plug.engine.messages.api_messages import Close
from sglang_plug.plugins.registry import Plugins

from .peer_connections import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, in_brackets
from .pending import InFlightRequests, MessageClient
from .remote_messages import Connect, Heartbeat, Kill, ToClient, ToServer, was_sent

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
"""Seconds between two checks of the server's heartbeats."""
HEARTBEAT_TIMEOUT = 30.0
"""Seconds without any message after which the connection has failed."""
SHUTDOWN_MS = 500
"""Milliseconds in which the last message may be sent."""
KILLED = "the engine was killed"
DISCONNECT_REASONS = {
    zmq.Event.DISCONNECTED: "the connection to the engine was lost",
    zmq.Event.CLOSED: "the engine's server does not answer",
    zmq.Event.CONNECT_RETRIED: "the engine's server does not answer",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "the engine's server refused the connection",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "the engine's server has another key than it should",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the engine's server refused this client's key",
}
"""Events after which a connection is not used any more: what it had in flight is unknown."""


HANDSHAKE_FAILED = frozenset(
    {
        zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
        zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
        zmq.Event.HANDSHAKE_FAILED_AUTH,
    }
)


class RefusedError(EngineError):
    """The engine's server and the client have keys that do not fit, or it is a server of another kind."""


async def _nothing() -> None:
    return None


class RemoteClient(MessageClient):
    """An engine behind an ``EngineServer``. A connection that is lost counts as the engine's failure.

    Args:
        connect: introduces the public key of this client to the server, by the means of a platform, and returns its
            address once the engine serves. May raise ``ConfigError`` and ``EngineError``.
        plugins: those of this process; the engine must have the same.
        stop: ends the engine when this client is closed; by default the engine goes on for others.
        keys: the public and the secret CURVE key of this client; ``None``: new ones.
    """

    def __init__(
        self,
        connect: Callable[[bytes], Awaitable[EngineAddress]],
        plugins: Plugins,
        stop: Callable[[], Awaitable[None]] = _nothing,
        keys: tuple[bytes, bytes] | None = None,
    ) -> None:
        super().__init__()
        self._connect, self._stop, self._keys = connect, stop, keys
        self._fingerprint = list(plugins.fingerprint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToClient)
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._monitor: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._checks_without_message = 0
        self._engine_heartbeat_age = 0.0

    async def start(self) -> Mapping[str, Any]:
        """Wait until the engine serves, and connect; return its ``info``."""
        self._loop = asyncio.get_running_loop()
        public, secret = self._keys or zmq.curve_keypair()
        self._pending = InFlightRequests(self._send)
        try:
            self._open(await self._connect(public), public, secret)
            self._send(Connect(self._fingerprint))
            return await self._pending.ready
        except BaseException:
            await self.close()
            raise

    def _open(self, address: EngineAddress, public: bytes, secret: bytes) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.set_hwm(0)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RECONNECT_IVL, -1),  # the server would not know the new connection's requests
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
            (zmq.IPV6, int(":" in address.host)),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, address.public_key)
        monitor: Any = socket.get_monitor_socket(sum(DISCONNECT_REASONS))
        self._monitor = monitor
        socket.connect(f"tcp://{in_brackets(address.host)}:{address.port}")
        self._socket = socket
        works = (self._listen(socket), self._watch_connection(monitor), self._watch_heartbeat())
        self._tasks = [asyncio.create_task(work) for work in works]

    def _send(self, message: ToServer) -> None:
        """Send a message. Raises ``EngineError`` if the connection is lost, which may be noticed here first."""
        assert self._socket is not None
        if was_sent(self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)):
            return
        error = EngineError(DISCONNECT_REASONS[zmq.Event.DISCONNECTED])
        self._link.fail(error)
        raise error

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            data = await socket.recv()
            self._checks_without_message = 0
            try:
                message = self._decoder.decode(data)
            except msgspec.MsgspecError as error:
                self._link.fail(EngineError(f"the engine's server sent what cannot be read: {error}"))
                return
            if isinstance(message, Heartbeat):
                self._engine_heartbeat_age = message.heartbeat_age
            else:
                self._link.dispatch(message)

    async def _watch_connection(self, monitor: Any) -> None:
        event = (await recv_monitor_message(monitor))["event"]
        await asyncio.sleep(0)  # a last message, which says why, may have arrived
        self._link.fail((RefusedError if event in HANDSHAKE_FAILED else EngineError)(DISCONNECT_REASONS[event]))

    async def _watch_heartbeat(self) -> None:
        """Count the time without messages in checks, so that it does not grow while this process is stopped."""
        while self.heartbeat_age <= HEARTBEAT_TIMEOUT:
            await asyncio.sleep(CHECK_SECONDS)
            self._checks_without_message += 1
        self._link.fail(EngineError(f"the engine's server has sent nothing for {HEARTBEAT_TIMEOUT:g} s"))

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the engine, or of its server."""
        if self._pending is None or self._pending.failure is not None:
            return 0.0
        return max(self._checks_without_message * CHECK_SECONDS, self._engine_heartbeat_age)

    def kill(self) -> None:
        """End the engine at once, also for its other clients."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._kill)

    def _kill(self) -> None:
        if self._pending is not None and self._pending.failure is None:
            if self._socket is not None:
                with contextlib.suppress(EngineError):
                    self._send(Kill())
            self._pending.fail(EngineError(KILLED))

    async def close(self) -> None:
        """Leave the engine, which aborts the requests in flight; then call ``stop``. May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        socket, self._socket = self._socket, None
        if socket is not None:
            is_connected = self._link.failure is None
            if is_connected:
                was_sent(socket.send(self._encoder.encode(Close()), zmq.NOBLOCK))
            self._link.fail(EngineError("the connection to the engine was closed"))
            socket.disable_monitor()
            self._monitor.close(linger=0)
            socket.close(linger=SHUTDOWN_MS if is_connected else 0)
        self._context.destroy()
        await self._stop()
