"""Sends blocks to the store of another engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import zmq

from sglang_plug import KVBlock, KVBlockPart, KVStoreError

from .messages import BLOCK, COMPLETE, LACKS, PART, PART_RANGE, joined
from .secret import CurveKeys

MAX_WAITING = 8
"""Messages that wait for the network; then sending has to wait."""
MAX_IN_PARTS = 1 << 16
"""Blocks of which further parts are expected; then those that are sent whole later are forgotten."""
UNUSED_SECONDS = 600.0
"""Seconds after which a connection that nothing was sent over is closed: engines come and go."""


class Sender:
    """A connection to one receiver. It is made anew after an error, as answers could be mistaken otherwise.

    Used by one thread at a time.

    Args:
        context: makes the sockets.
        address: that of the receiver.
        keys: the keys of all engines.
        seconds: time for which the receiver is waited for.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: CurveKeys, seconds: float) -> None:
        self._context, self._address, self._keys, self._seconds = context, address, keys, seconds
        self._socket: zmq.Socket[bytes] | None = None
        self._number = 0
        self._in_parts = set[bytes]()  # the blocks of which further parts are sent

    def lacking(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the keys of the blocks that the receiver does not have. Raises ``KVStoreError``."""
        self._number += 1
        number = str(self._number).encode()
        self._send([LACKS, number, joined(keys)])
        assert self._socket is not None
        if not self._socket.poll(round(1000 * self._seconds)):
            raise self._failure("does not answer")
        answered, lacks = self._socket.recv_multipart()
        if answered != number or len(lacks) != len(keys):
            raise self._failure("sent an unexpected answer")
        return [key for key, is_lacking in zip(keys, lacks, strict=True) if is_lacking]

    def send(self, block: KVBlock) -> None:
        """Send a block. Raises ``KVStoreError`` if too many messages wait for the network for too long."""
        self._send([BLOCK, block.key, block.data])

    def send_parts(self, parts: Sequence[KVBlockPart]) -> None:
        """Send parts of those blocks that the receiver lacked when their first parts were to be sent.

        Raises ``KVStoreError``.
        """
        if first := [part.key for part in parts if part.start == 0]:
            if len(self._in_parts) > MAX_IN_PARTS:  # the last parts of some blocks were never sent
                self._in_parts.clear()
            self._in_parts.update(self.lacking(first))
        for part in parts:
            if part.key in self._in_parts:
                self._send([PART, part.key, PART_RANGE.pack(part.start, part.size), part.data])
                if part.start + part.data.nbytes == part.size:
                    self._in_parts.remove(part.key)

    def complete(self, transfer: str) -> None:
        """Tell that all blocks of a transfer were sent. Raises ``KVStoreError``."""
        self._send([COMPLETE, transfer.encode()])

    def close(self) -> None:
        """Close the connection; what waits for the network is lost."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._in_parts.clear()

    def _send(self, frames: Sequence[bytes | memoryview]) -> None:
        if self._socket is None:
            self._socket = self._connected()
        try:
            self._socket.send_multipart(frames, copy=False)
        except zmq.Again:
            raise self._failure("cannot be reached, has another secret, or is too slow") from None

    def _connected(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set_hwm(MAX_WAITING)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),  # nothing waits for a connection that may never be made
            (zmq.SNDTIMEO, round(1000 * self._seconds)),
            (zmq.IPV6, int("[" in self._address)),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.public)
        socket.connect(self._address)
        return socket

    def _failure(self, problem: str) -> KVStoreError:
        self.close()
        return KVStoreError(f"the KV store of another engine at {self._address} {problem}")


class Senders:
    """The connections to all receivers that blocks were sent to.

    Args:
        keys: the keys of all engines.
        seconds: see ``Sender``.
    """

    def __init__(self, keys: CurveKeys, seconds: float) -> None:
        self._keys, self._seconds = keys, seconds
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._senders: dict[str, tuple[Sender, float]] = {}

    def to(self, address: str) -> Sender:
        """Return the connection to an address; those that were not used for a long time are closed."""
        now = time.monotonic()
        for other, (sender, used) in list(self._senders.items()):
            if other != address and now - used > UNUSED_SECONDS:
                sender.close()
                del self._senders[other]
        sender = self._senders[address][0] if address in self._senders else self._new(address)
        self._senders[address] = sender, now
        return sender

    def close(self) -> None:
        """Close all connections."""
        for sender, _ in self._senders.values():
            sender.close()
        self._context.destroy(linger=0)

    def _new(self, address: str) -> Sender:
        return Sender(self._context, address, self._keys, self._seconds)
