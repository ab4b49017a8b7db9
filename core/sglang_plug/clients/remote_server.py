"""An engine for clients in other processes or on other machines: an encrypted socket in front of its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from sglang_plug.config import ConfigError
from sglang_plug.contracts.request import Output
from sglang_plug.contracts.serving.engine_client import EngineAddress, EngineError, EngineLaunch
from sglang_plug.engine.processes.messages import (
    Abort,
    Close,
    Control,
    Failed,
    FromEngine,
    Pause,
    Ready,
    Reply,
    Resume,
    StepOutputs,
    Submit,
)

from .engine_process import EngineProcess
from .remote_messages import VERSION, Alive, Hello, Kill, ToClient, ToServer, was_sent

logger = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between two signs of life."""
HEARTBEAT, HEARTBEAT_TIMEOUT = 1000, 5000
"""Milliseconds between two heartbeats of the transport, and without one after which the connection has failed."""
ZAP_DOMAIN = b"engine"


@dataclass(eq=False, slots=True)
class Peer:
    """A client that is connected."""

    route: bytes
    prefix: str
    ids: set[str] = field(default_factory=set)
    """Its requests in flight, under their ids in the engine."""
    calls: set[int] = field(default_factory=set)


class AdmittedKeys:
    """The public keys of the clients that may connect, as the ZeroMQ authenticator asks for them."""

    def __init__(self) -> None:
        self._keys = set[bytes]()

    def callback(self, domain: str, key: bytes) -> bool:
        """Report whether the client with this key may connect."""
        return key in self._keys

    def set(self, keys: set[bytes]) -> None:
        """Replace the keys."""
        self._keys = keys

    @property
    def all(self) -> frozenset[bytes]:
        """The keys."""
        return frozenset(self._keys)


class EngineServer:
    """Starts an engine in a process of its own, and serves clients (``RemoteClient``) over TCP with CURVE.

    Only clients whose keys were admitted can connect; nobody can listen in. Each has ids of its own, and gets the
    outputs of its requests and the statistics of every step in one message for each step. The requests of a client
    that is gone are aborted. Used by one event loop.

    Args:
        launch: the engine.
        host: the address of this machine to listen on; a free port is taken.
    """

    def __init__(self, launch: EngineLaunch, host: str) -> None:
        self._host = host
        self._fingerprint = set(launch.plugins.fingerprint)
        self._process = EngineProcess(launch.config, launch.plugins, launch.cores)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToServer)
        self._context = zmq.asyncio.Context()
        self._authenticator: AsyncioAuthenticator | None = None
        self._admitted = AdmittedKeys()
        self._public, self._secret = zmq.curve_keypair()
        self._socket: zmq.asyncio.Socket | None = None
        self._address: EngineAddress | None = None
        self._peers: dict[bytes, Peer] = {}
        self._owners: dict[str, Peer] = {}
        self._queued: dict[str, int] = {}
        self._running_tokens = 0
        self._calls: dict[int, tuple[Peer, int]] = {}
        self._numbers = 0
        self._ready: asyncio.Future[Mapping[str, Any]] | None = None
        self._failure: str | None = None
        self._failed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Mapping[str, Any]:
        """Start the engine and wait until it can serve, then listen; return its ``info``.

        Raises ``ConfigError`` if the configuration cannot be served, ``EngineError`` if the engine died.
        """
        self._ready = asyncio.get_running_loop().create_future()
        try:
            self._process.spawn(self._dispatch, self._fail)
            info = await self._ready
            self._listen()
            return info
        except BaseException:
            await self.close()
            raise

    def _listen(self) -> None:
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(ZAP_DOMAIN.decode(), self._admitted)
        socket = self._socket = self._context.socket(zmq.ROUTER)
        socket.set_hwm(0)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.HEARTBEAT_IVL, HEARTBEAT),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT),
            (zmq.IPV6, int(":" in self._host)),
            (zmq.CURVE_SERVER, 1),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        host = f"[{self._host}]" if ":" in self._host else self._host
        port = socket.bind_to_random_port(f"tcp://{host}")
        self._address = EngineAddress(self._host, port, self._public)
        self._tasks = [asyncio.create_task(self._receive(socket)), asyncio.create_task(self._give_signs_of_life())]

    @property
    def address(self) -> EngineAddress:
        """The address, once the engine serves."""
        if self._address is None:
            raise RuntimeError("the engine was not started: await server.start() first")
        return self._address

    def admit(self, public_key: bytes) -> EngineAddress:
        """Let the client with this key connect; return the address for it."""
        self._admitted.set({*self._admitted.all, public_key})
        return self.address

    def admit_only(self, public_keys: Sequence[bytes]) -> None:
        """Let the clients with these keys connect from now on, and no others; connections that exist stay."""
        self._admitted.set(set(public_keys))

    @property
    def clients(self) -> int:
        """Number of clients that are connected."""
        return len(self._peers)

    @property
    def requests(self) -> int:
        """Number of requests in flight."""
        return len(self._owners)

    @property
    def queued_tokens(self) -> int:
        """Number of prompt tokens of the requests that have no output yet."""
        return sum(self._queued.values())

    @property
    def running_tokens(self) -> int:
        """Number of tokens in the KV cache that running requests held at the last step."""
        return self._running_tokens

    @property
    def failure(self) -> str | None:
        """The reason why the engine cannot serve, or ``None``."""
        return self._failure

    @property
    def silent_for(self) -> float:
        """Seconds since the engine has given a sign of life."""
        return self._process.silent_for

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid

    async def wait_failed(self) -> str:
        """Wait until the engine has failed; return the reason."""
        await self._failed.wait()
        return self._failure or ""

    def kill(self) -> None:
        """End the engine at once."""
        self._process.kill()

    async def close(self) -> None:
        """Stop the engine and the connections, and wait until they are gone. May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._process.close()
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self._context.destroy(linger=0)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            route, *rest = await socket.recv_multipart()
            try:
                self._handle(route, self._decoder.decode(b"".join(rest)))
            except msgspec.MsgspecError as error:  # of another version
                logger.error("A client sent what cannot be read, and is refused: %s", error)
                self._refuse(route, f"the engine's server cannot read a message: {error}")
            except EngineError as error:
                logger.debug("A message did not reach the engine: %s", error)

    def _handle(self, route: bytes, message: ToServer) -> None:
        peer = self._peers.get(route)
        if isinstance(message, Hello):
            if peer is None:
                self._greet(route, message)
            return
        if peer is None:  # it was refused, or taken for lost
            self._refuse(route, "the engine's server does not know this connection any more")
            return
        match message:
            case Submit(request):
                request = replace(request, id=peer.prefix + request.id)
                peer.ids.add(request.id)
                self._owners[request.id] = peer
                self._queued[request.id] = len(request.tokens)
                self._process.send(Submit(request))
            case Abort(ids):
                self._abort(peer, [peer.prefix + id for id in ids])
            case Pause(ids):
                self._process.send(Pause(tuple(peer.prefix + id for id in ids)))
            case Resume(ids):
                self._process.send(Resume(tuple(peer.prefix + id for id in ids)))
            case Control(number, name, arguments):
                self._numbers += 1
                self._calls[self._numbers] = peer, number
                peer.calls.add(self._numbers)
                self._process.send(Control(self._numbers, name, arguments))
            case Kill():
                logger.error("A client ends the engine")
                self._process.kill()
            case Close():
                self._forget(peer)

    def _greet(self, route: bytes, hello: Hello) -> None:
        assert self._ready is not None
        if hello.version != VERSION:
            self._refuse(route, f"the engine's server has version {VERSION} of its messages, not {hello.version}")
        elif differing := self._fingerprint ^ set(hello.fingerprint):
            names = ", ".join(sorted(" ".join(plugin) for plugin in differing))
            self._refuse(route, f"the engine has other plugins than its client: {names}")
        elif self._failure is not None:
            self._refuse(route, self._failure, configuration=False)
        else:
            self._numbers += 1
            self._peers[route] = peer = Peer(route, f"{self._numbers}:")
            self._send(peer, Ready(dict(self._ready.result())))

    def _refuse(self, route: bytes, reason: str, *, configuration: bool = True) -> None:
        if (peer := self._peers.get(route)) is not None:
            self._forget(peer)
        self._send(Peer(route, ""), Failed(reason, configuration))

    def _abort(self, peer: Peer, ids: Sequence[str]) -> None:
        peer.ids.difference_update(ids)
        for id in ids:
            self._owners.pop(id, None)
            self._queued.pop(id, None)
        self._process.send(Abort(tuple(ids)))

    def _forget(self, peer: Peer) -> None:
        """Abort what a client has in flight, and forget it."""
        self._peers.pop(peer.route, None)
        for number in peer.calls:
            self._calls.pop(number, None)
        if peer.ids and self._failure is None:
            logger.info("A client is gone; %d of its requests are aborted", len(peer.ids))
            with contextlib.suppress(EngineError):  # the engine has just died, which ends them, too
                self._abort(peer, tuple(peer.ids))

    def _dispatch(self, message: FromEngine) -> None:
        """Pass a message of the engine on to the clients that it is for."""
        match message:
            case StepOutputs():
                self._split(message)
            case Reply(number):
                if (call := self._calls.pop(number, None)) is not None:
                    peer, own_number = call
                    peer.calls.discard(number)
                    self._send(peer, Reply(own_number, message.value, message.error, message.status))
            case Ready(info):
                assert self._ready is not None
                if not self._ready.done():
                    self._ready.set_result(info)
            case Failed(text, configuration):
                self._fail(ConfigError(text) if configuration else EngineError(text))

    def _split(self, message: StepOutputs) -> None:
        shares: dict[Peer, list[Output]] = {}
        for output in message.outputs:
            if (peer := self._owners.get(output.id)) is None:
                continue
            self._queued.pop(output.id, None)
            if output.finish is not None:
                del self._owners[output.id]
                peer.ids.discard(output.id)
            shares.setdefault(peer, []).append(replace(output, id=output.id[len(peer.prefix) :]))
        if message.stats is not None:
            self._running_tokens = message.stats.used_slots
        receivers = list(self._peers.values()) if message.stats is not None else list(shares)
        for peer in receivers:
            self._send(peer, StepOutputs(shares.get(peer, []), message.stats))

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = str(error)
        self._failed.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        for peer in list(self._peers.values()):
            self._send(peer, Failed(self._failure))

    def _send(self, peer: Peer, message: ToClient) -> None:
        """Send a message; forget the client if it is gone. Never waits: the queue has no limit."""
        assert self._socket is not None
        is_sent = was_sent(self._socket.send_multipart([peer.route, self._encoder.encode(message)], zmq.NOBLOCK))
        if not is_sent and self._peers.get(peer.route) is peer:
            self._forget(peer)

    async def _give_signs_of_life(self) -> None:
        """Send a sign of life to every client, which also tells which ones are gone."""
        while True:
            await asyncio.sleep(PERIOD)
            for peer in list(self._peers.values()):
                self._send(peer, Alive(self.silent_for))
