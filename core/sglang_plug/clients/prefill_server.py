"""Computes prompts for the decode servers that connect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import replace

import zmq

from sglang_plug.clients.peer_connections import Peer, PeerConnections, in_brackets
from sglang_plug.clients.remote_messages import ToServer
from sglang_plug.config import ConfigError
from sglang_plug.contracts.request import Finish, Output, Request, RequestError
from sglang_plug.contracts.serving.engine_client import EngineClient, EngineError
from sglang_plug.engine.messages.api_messages import Abort, Close, Control, Failed, Ready, Reply, StepOutputs, Submit

logger = logging.getLogger(__name__)

INFO = "info"
"""The only control call that decode servers may make: they do not operate this server."""


class PrefillServer:
    """Lets the engines of this server compute prompts for decode servers (``RemoteClient``), over TCP with CURVE.

    Requests that are not sent to a decode server are refused, and so are control calls that change the engines. Used by
    one event loop.

    Args:
        client: the engines.
        fingerprint: that of the plugins, which decode servers must have, too.
        host: address of this machine to listen on.
        port: 0: a free one.
        keys: see ``keys_of``; decode servers have the same ones.
    """

    def __init__(
        self,
        client: EngineClient,
        fingerprint: Iterable[tuple[str, str, str]],
        *,
        host: str,
        port: int,
        keys: tuple[bytes, bytes],
    ) -> None:
        self._client, self._host, self._port = client, host, port
        self._public, self._secret = keys
        self._connections = PeerConnections(
            fingerprint,
            handshake_reply=self._handshake_reply,
            handle=self._handle,
            on_disconnect=self._abort_all,
            admits=lambda key: key == self._public,
            heartbeat_age=lambda: client.heartbeat_age,
        )
        self._computing: dict[str, asyncio.Task[None]] = {}
        self._calls = set[asyncio.Task[None]]()
        self.address = ""
        """Host and port, once it is bound."""

    def bind(self) -> None:
        """Take the port; decode servers that connect wait until ``serve``. Raises ``ConfigError`` if that fails."""
        try:
            port = self._connections.bind(self._host, self._port, self._secret)
        except zmq.ZMQError as error:
            where = f"{in_brackets(self._host)}:{self._port}"
            raise ConfigError(
                f"cannot listen for decode servers on {where}: {error}; choose another --prefill-port"
            ) from error
        self.address = f"{in_brackets(self._host)}:{port}"

    def serve(self) -> None:
        """Begin to compute prompts."""
        self._connections.serve()

    async def close(self) -> None:
        """Abort what is computed, and close all connections. May be called twice."""
        await self._connections.stop()
        tasks = [*self._computing.values(), *self._calls]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.close()

    def _handshake_reply(self) -> Ready | Failed:
        failure = self._client.failure
        return Ready({}) if failure is None else Failed(failure)

    def _handle(self, peer: Peer, message: ToServer) -> None:
        match message:
            case Submit(request):
                id = peer.prefix + request.id
                peer.ids.add(id)
                self._computing[id] = asyncio.create_task(self._compute(peer, request, id))
            case Abort(ids):
                computing = [id for id in ids if peer.prefix + id in self._computing]
                self._abort(*(peer.prefix + id for id in computing))
                ends = [Output(id=id, finish=Finish("abort")) for id in computing]
                self._connections.send(peer, StepOutputs(ends))
            case Control(number, name):
                call = asyncio.create_task(self._answer(peer, number, name))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
            case Close():
                self._connections.forget(peer)
            case _:
                logger.debug("A decode server sent %s, which has no effect here", type(message).__name__)

    async def _compute(self, peer: Peer, request: Request, id: str) -> None:
        try:
            if request.transfer is None or not request.transfer.address:
                raise RequestError("a prefill server only computes prompts that it sends to a decode server")
            async with contextlib.aclosing(self._client.submit(replace(request, id=id))) as outputs:
                async for output in outputs:
                    self._connections.send(peer, StepOutputs([replace(output, id=request.id)]))
        except RequestError as error:
            finish = Finish("error", message=str(error), status=error.status, about=error.about, field=error.field)
            self._connections.send(peer, StepOutputs([Output(id=request.id, finish=finish)]))
        except EngineError as error:
            self._connections.refuse(peer, Failed(str(error)))
        finally:
            self._computing.pop(id, None)
            peer.ids.discard(id)

    async def _answer(self, peer: Peer, number: int, name: str) -> None:
        try:
            if name != INFO:
                raise RequestError(f"decode servers cannot call {name!r} of a prefill server", 403)
            self._connections.send(peer, Reply(number, await self._client.control(INFO)))
        except RequestError as error:
            self._connections.send(peer, Reply(number, error=str(error), status=error.status))
        except EngineError as error:
            self._connections.refuse(peer, Failed(str(error)))

    def _abort(self, *ids: str) -> None:
        for id in ids:
            if (task := self._computing.get(id)) is not None and task is not asyncio.current_task():
                task.cancel()

    def _abort_all(self, peer: Peer) -> None:
        if peer.ids:
            logger.info("A decode server disconnected; %d of its prompts are aborted", len(peer.ids))
            self._abort(*peer.ids)
