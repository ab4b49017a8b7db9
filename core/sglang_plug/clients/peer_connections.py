"""The encrypted connections between a server and its clients in other processes or on other machines."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils import z85

from sglang_plug.contracts.serving.engine_client import EngineError
from sglang_plug.engine.messages.api_messages import Failed, Ready

from .remote_messages import VERSION, Connect, Heartbeat, ToClient, ToServer, was_sent

logger = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between two heartbeats of the engine."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 5000
"""Milliseconds between two heartbeats of the transport, and without one after which the connection has failed."""
ZAP_DOMAIN = b"engine"


@dataclass(eq=False, slots=True)
class Peer:
    """A client that is connected."""

    route: bytes
    prefix: str
    ids: set[str] = field(default_factory=set)
    """Ids, as the engine knows them, of the client's requests in flight."""
    calls: set[int] = field(default_factory=set)


class PeerConnections:
    """Listens for clients (``RemoteClient``) over TCP with CURVE. Only those whose keys were admitted can connect.

    Used by one event loop.

    Args:
        fingerprint: that of the server's plugins, which clients must have, too.
        handshake_reply: returns the answer to a new client.
        handle: handles a message of a client.
        on_disconnect: aborts the requests in flight of a client that has disconnected.
        admits: reports whether the client with a public key may connect.
        heartbeat_age: returns the seconds since the last heartbeat of the engine.
    """

    def __init__(
        self,
        fingerprint: Iterable[tuple[str, str, str]],
        *,
        handshake_reply: Callable[[], Ready | Failed],
        handle: Callable[[Peer, ToServer], None],
        on_disconnect: Callable[[Peer], None],
        admits: Callable[[bytes], bool],
        heartbeat_age: Callable[[], float],
    ) -> None:
        self._fingerprint = set(fingerprint)
        self._handshake_reply, self._handle = handshake_reply, handle
        self._on_disconnect, self._admits, self._heartbeat_age = on_disconnect, admits, heartbeat_age
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToServer)
        self._context = zmq.asyncio.Context()
        self._authenticator = AsyncioAuthenticator(self._context)
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.ROUTER)
        self._peers: dict[bytes, Peer] = {}
        self._numbers = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def peers(self) -> list[Peer]:
        """The clients that are connected."""
        return list(self._peers.values())

    def callback(self, domain: str, key: bytes) -> bool:
        """Report whether the client with this key may connect; the ZeroMQ authenticator asks."""
        return self._admits(key)

    def bind(self, host: str, port: int, secret_key: bytes) -> int:
        """Take a port, a free one for 0, and return it; clients wait until ``serve``. Raises ``zmq.ZMQError``."""
        self._authenticator.start()
        self._authenticator.configure_curve_callback(ZAP_DOMAIN.decode(), self)
        socket = self._socket
        socket.set_hwm(0)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
            (zmq.IPV6, int(":" in host)),
            (zmq.CURVE_SERVER, 1),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.bind(f"tcp://{in_brackets(host)}:{port or '*'}")
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def serve(self) -> None:
        """Begin to handle messages."""
        works = (self._receive(), self._send_heartbeats())
        self._tasks = [asyncio.create_task(work) for work in works]

    def send(self, peer: Peer, message: ToClient) -> None:
        """Send a message; forget the client if it has disconnected. Never waits: the queue has no limit."""
        is_sent = was_sent(self._socket.send_multipart([peer.route, self._encoder.encode(message)], zmq.NOBLOCK))
        if not is_sent and self._peers.get(peer.route) is peer:
            self.forget(peer)

    def refuse(self, peer: Peer, failed: Failed) -> None:
        """Tell a client why it is not served any more, and forget it."""
        self.forget(peer)
        self.send(peer, failed)

    def forget(self, peer: Peer) -> None:
        """Forget a client, and abort what it has in flight."""
        if self._peers.pop(peer.route, None) is not None:
            self._on_disconnect(peer)

    async def stop(self) -> None:
        """Handle no messages any more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self._authenticator.stop()
        self._context.destroy(linger=0)

    async def _receive(self) -> None:
        while True:
            route, *frames = await self._socket.recv_multipart()
            try:
                self._take(route, self._decoder.decode(b"".join(frames)))
            except msgspec.MsgspecError as error:  # of another version
                logger.error("A client sent what cannot be read, and is refused: %s", error)
                self._refuse(route, f"the engine's server cannot read a message: {error}")
            except EngineError as error:
                logger.debug("A message did not reach the engine: %s", error)

    def _take(self, route: bytes, message: ToServer) -> None:
        peer = self._peers.get(route)
        if isinstance(message, Connect):
            if peer is None:
                self._accept(route, message)
        elif peer is None:  # it was refused, or taken for lost
            self._refuse(route, "the engine's server does not know this connection any more")
        else:
            self._handle(peer, message)

    def _accept(self, route: bytes, connect: Connect) -> None:
        if connect.version != VERSION:
            self._refuse(route, f"the engine's server has version {VERSION} of its messages, not {connect.version}")
            return
        if differing := self._fingerprint ^ set(connect.fingerprint):
            names = ", ".join(sorted(" ".join(plugin) for plugin in differing))
            self._refuse(route, f"the engine has other plugins than its client: {names}")
            return
        self._numbers += 1
        peer = Peer(route, f"{self._numbers}:")
        handshake_reply = self._handshake_reply()
        if isinstance(handshake_reply, Ready):
            self._peers[route] = peer
        self.send(peer, handshake_reply)

    def _refuse(self, route: bytes, reason: str) -> None:
        self.refuse(self._peers.get(route) or Peer(route, ""), Failed(reason, configuration=True))

    async def _send_heartbeats(self) -> None:
        """Send a heartbeat to every client, which also shows which ones have disconnected."""
        while True:
            await asyncio.sleep(PERIOD)
            for peer in self.peers:
                self.send(peer, Heartbeat(self._heartbeat_age()))


def in_brackets(host: str) -> str:
    """Return a host as it is written in addresses: IPv6 addresses are in brackets."""
    return f"[{host}]" if ":" in host else host


def keys_of(secret: bytes) -> tuple[bytes, bytes]:
    """Return the public and the secret CURVE key of ``secret``; servers of both roles use the same ones."""
    private = z85.encode(hmac.digest(secret, b"sglang-plug prefill", "sha256"))
    return zmq.curve_public(private), private
