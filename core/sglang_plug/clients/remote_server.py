"""An engine for clients in other processes or on other machines: an encrypted socket in front of its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import zmq
import zmq.asyncio

from sglang_plug.config import ConfigError
from sglang_plug.contracts.request import Output
from sglang_plug.contracts.serving.engine_client import EngineAddress, EngineError, EngineLaunch
from sglang_plug.engine.messages.api_messages import (
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
from .peer_connections import Peer, PeerConnections
from .remote_messages import Kill, ToServer

logger = logging.getLogger(__name__)


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
        self._launch, self._host = launch, host
        self._running: EngineProcess | None = None
        self._connections = PeerConnections(
            launch.plugins.fingerprint,
            handshake_reply=self._handshake_reply,
            handle=self._handle,
            on_disconnect=self._abort_all,
            admits=lambda key: key in self._admitted,
            heartbeat_age=lambda: self.heartbeat_age,
        )
        self._admitted = frozenset[bytes]()
        self._public, self._secret = zmq.curve_keypair()
        self._address: EngineAddress | None = None
        self._owners: dict[str, Peer] = {}
        self._queued: dict[str, int] = {}
        self._running_tokens = 0
        self._calls: dict[int, tuple[Peer, int]] = {}
        self._numbers = 0
        self._info: Mapping[str, Any] = {}
        self._error: Exception | None = None
        self._started, self._failed = asyncio.Event(), asyncio.Event()

    async def start(self) -> Mapping[str, Any]:
        """Start the engine and wait until it can serve, then listen; return its ``info``.

        Raises ``ConfigError`` if the configuration cannot be served, ``EngineError`` if the engine died.
        """
        launch = self._launch
        try:
            self._running = EngineProcess(
                launch.config, launch.plugins, launch.cores, dispatch=self._dispatch, fail=self._fail
            )
            await self._started.wait()
            if self._error is not None:
                raise self._error
            self._listen()
            return self._info
        except BaseException:
            await self.close()
            raise

    def _listen(self) -> None:
        port = self._connections.bind(self._host, 0, self._secret)
        self._address = EngineAddress(self._host, port, self._public)
        self._connections.serve()

    @property
    def _process(self) -> EngineProcess:
        if self._running is None:
            raise RuntimeError("the engine was not started: await server.start() first")
        return self._running

    @property
    def address(self) -> EngineAddress:
        """The address, once the engine serves."""
        if self._address is None:
            raise RuntimeError("the engine was not started: await server.start() first")
        return self._address

    def admit(self, public_key: bytes) -> EngineAddress:
        """Let the client with this key connect; return the address for it."""
        self._admitted |= {public_key}
        return self.address

    def admit_only(self, public_keys: Sequence[bytes]) -> None:
        """Let the clients with these keys connect from now on, and no others; connections that exist stay."""
        self._admitted = frozenset(public_keys)

    @property
    def clients(self) -> int:
        """Number of clients that are connected."""
        return len(self._connections.peers)

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
        return None if self._error is None else str(self._error)

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the engine."""
        return 0.0 if self._running is None else self._running.heartbeat_age

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return None if self._running is None else self._running.pid

    async def wait_failed(self) -> str:
        """Wait until the engine has failed; return the reason."""
        await self._failed.wait()
        return str(self._error)

    def kill(self) -> None:
        """End the engine at once."""
        if self._running is not None:
            self._running.kill()

    async def close(self) -> None:
        """Stop the engine and the connections, and wait until they are gone. May be called twice."""
        await self._connections.stop()
        if self._running is not None:
            await self._running.close()
        self._connections.close()

    def _handshake_reply(self) -> Ready | Failed:
        return Ready(dict(self._info)) if self._error is None else Failed(str(self._error))

    def _handle(self, peer: Peer, message: ToServer) -> None:
        match message:
            case Submit(request):
                request = replace(request, id=peer.prefix + request.id)
                peer.ids.add(request.id)
                self._owners[request.id] = peer
                self._queued[request.id] = len(request.tokens)
                self._process.send(Submit(request))
            case Abort(ids):
                self._abort([peer.prefix + id for id in ids])
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
                logger.error("A client requested the end of the engine")
                self._process.kill()
            case Close():
                self._connections.forget(peer)

    def _abort(self, ids: Sequence[str]) -> None:
        """Abort requests; their clients get the ends of the outputs."""
        for id in ids:
            self._queued.pop(id, None)
        self._process.send(Abort(tuple(ids)))

    def _abort_all(self, peer: Peer) -> None:
        """Abort the requests in flight of a client that has disconnected."""
        for number in peer.calls:
            self._calls.pop(number, None)
        if peer.ids and self._error is None:
            logger.info("A client disconnected; %d of its requests are aborted", len(peer.ids))
            ids, peer.ids = tuple(peer.ids), set()
            for id in ids:
                self._owners.pop(id, None)
            with contextlib.suppress(EngineError):  # the engine has just died, which ends them, too
                self._abort(ids)

    def _dispatch(self, message: FromEngine) -> None:
        """Pass a message of the engine on to the clients that it is for."""
        match message:
            case StepOutputs():
                self._split(message)
            case Reply(number):
                if (call := self._calls.pop(number, None)) is not None:
                    peer, own_number = call
                    peer.calls.discard(number)
                    self._connections.send(peer, Reply(own_number, message.value, message.error, message.status))
            case Ready(info):
                self._info = info
                self._started.set()
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
        receivers = self._connections.peers if message.stats is not None else list(shares)
        for peer in receivers:
            self._connections.send(peer, StepOutputs(shares.get(peer, []), message.stats))

    def _fail(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = error
        self._started.set()
        self._failed.set()
        for peer in self._connections.peers:
            self._connections.send(peer, Failed(str(error)))
