"""Receives blocks from the stores of other engines, in a thread."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from sglang_plug import ConfigError, KVBlock, KVBlockPart
from sglang_plug_backends.background_thread import background_thread

from .messages import BLOCK, COMPLETE, LACKS, PART, PART_RANGE, address_of, separated
from .secret import CurveKeys

logger = logging.getLogger(__name__)

MAX_WAITING = 8
"""Messages of one sender that wait for the thread; then the sender has to wait."""
MAX_TRANSFERS = 1 << 16
"""Complete transfers that are kept until somebody asks for them."""
DOMAIN = b"sglang-plug-transfer"
POLL = 200
"""Milliseconds after which the thread notices that it shall end."""


class AdmittedKey:
    """Admits the clients that have one public key, as the ZeroMQ authenticator asks."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """Report whether the client with this key may connect."""
        return key == self._key


class ReceivingStore(Protocol):
    """The methods of a store that the receiver calls."""

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks are present."""

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Keep blocks."""

    def store_part(self, part: KVBlockPart) -> None:
        """Keep a part of a block. Raises ``ValueError`` if it does not fit the block's other parts."""


class Receiver:
    """Listens for other stores, and puts their blocks into a store.

    Args:
        blocks: where blocks are kept.
        keys: the keys of all engines.
        host: address or network interface of this machine.
        port: 0: a free one.

    Raises ``ConfigError`` if it cannot listen there.
    """

    def __init__(self, blocks: ReceivingStore, keys: CurveKeys, host: str, port: int) -> None:
        self._blocks = blocks
        self._lock = threading.Lock()
        self._complete: OrderedDict[str, None] = OrderedDict()
        self._closed = False
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(DOMAIN.decode(), AdmittedKey(keys.public))
        socket = self._context.socket(zmq.ROUTER)
        socket.set_hwm(MAX_WAITING)
        for option, value in ((zmq.LINGER, 0), (zmq.IPV6, int(":" in host)), (zmq.CURVE_SERVER, 1)):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        try:
            socket.bind(address_of(host, port or "*"))
            self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)  # with the address of an interface that is named
        except zmq.ZMQError as error:
            socket.close()
            self._end()
            raise ConfigError(f"the KV store 'transfer' cannot listen at {address_of(host, port)}: {error}") from error
        self._thread = background_thread(lambda: self._run(socket), "kv-transfer")
        self._thread.start()

    def is_complete(self, transfer: str) -> bool:
        """Report whether all messages of a transfer have arrived; true only once."""
        with self._lock:
            return self._complete.pop(transfer, self) is None

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._thread.join()
        self._end()

    def _end(self) -> None:
        self._authenticator.stop()
        self._context.destroy(linger=0)

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        while not self._closed:
            if not socket.poll(POLL):
                continue
            try:
                self._receive(socket)
            except Exception:
                logger.exception("A message of another engine's KV store could not be handled")
        socket.close()

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        route, kind, *frames = socket.recv_multipart(copy=False)
        match kind.bytes, frames:
            case (kind_, [number, keys]) if kind_ == LACKS:
                present = self._blocks.lookup(separated(keys.bytes))
                socket.send_multipart([route.bytes, number.bytes, bytes(not is_present for is_present in present)])
            case (kind_, [key, content]) if kind_ == BLOCK and len(key) == KVBlock.KEY_BYTES:
                self._blocks.store([KVBlock(key.bytes, content.buffer)])  # without a copy
            case (kind_, [key, part_range, content]) if kind_ == PART and len(key) == KVBlock.KEY_BYTES:
                start, size = PART_RANGE.unpack(part_range.bytes)
                self._blocks.store_part(KVBlockPart(key.bytes, start, size, content.buffer))
            case (kind_, [transfer]) if kind_ == COMPLETE:
                self._note(transfer.bytes.decode())
            case _:
                raise ValueError(f"a message of kind {kind.bytes!r} with {len(frames)} frames is unknown")

    def _note(self, transfer: str) -> None:
        with self._lock:
            self._complete[transfer] = None
            while len(self._complete) > MAX_TRANSFERS:
                self._complete.popitem(last=False)
