"""Publishes events over ZeroMQ from a thread of its own.

A message of the publisher (PUB) is ``[topic, number, payload]``, the number as 8 bytes, big-endian. Numbers have no
gaps, so a subscriber notices what it has missed. The first one is the time of the start in microseconds: the numbers of
an engine that replaces another one are higher, which looks like a gap, too.

The subscriber asks a second socket (ROUTER) with the first number that it needs, from a DEALER socket as
``["", number]``, and receives ``["", number, payload]`` for each batch and at last the number -1 with an empty payload.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from .events import AllBlocksCleared, Event
from .replay_buffer import ReplayBuffer, SentBatch
from .wire import Encode

logger = logging.getLogger(__name__)

NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
LINGER = 1000
"""Milliseconds that the last messages may take when the engine ends."""
SPARE = 16
"""Messages beyond one whole replay that may wait for a subscriber."""


class EventSockets:
    """The two sockets, open for subscribers.

    Args:
        endpoint: address of the publisher.
        replay_endpoint: address for replays; empty: none.
        connect: connect the publisher, instead of binding it.
        high_water_mark: maximum number of messages that wait for one subscriber.
        replayed: maximum number of messages of a replay.

    Raises ``zmq.ZMQError`` if an address cannot be used.
    """

    def __init__(
        self, endpoint: str, replay_endpoint: str, *, connect: bool, high_water_mark: int, replayed: int
    ) -> None:
        self._context = zmq.Context()
        self.publisher = self._context.socket(zmq.PUB)
        self.replay: zmq.Socket[bytes] | None = None
        try:
            self.publisher.setsockopt(zmq.LINGER, LINGER)
            self.publisher.set_hwm(high_water_mark)
            (self.publisher.connect if connect else self.publisher.bind)(endpoint)
            if replay_endpoint:
                self.replay = self._context.socket(zmq.ROUTER)
                self.replay.setsockopt(zmq.LINGER, 0)
                self.replay.setsockopt(zmq.SNDHWM, replayed + SPARE)
                self.replay.bind(replay_endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets, after the last messages are sent or ``LINGER`` has passed."""
        self.publisher.close()
        if self.replay is not None:
            self.replay.close()
        self._context.term()


class EventPublisher:
    """Sends events in the order in which they are published; the caller never waits.

    Args:
        sockets: open sockets, which this object closes.
        topic: the first frame of each message.
        encode: makes the payload of a batch.
        max_batches: number of batches that can be replayed one by one.
    """

    def __init__(self, sockets: EventSockets, topic: str, encode: Encode, max_batches: int) -> None:
        self._sockets, self._topic, self._encode = sockets, topic.encode(), encode
        self._buffer = ReplayBuffer(max_batches, encode)
        self._events = deque[Event]()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._is_woken = self._closing = self._failed = False
        self._first = self._next = time.time_ns() // 1000
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self.publish(AllBlocksCleared())  # subscribers may still know blocks of an engine that was here before
        self._thread.start()

    @property
    def batches(self) -> int:
        """Number of batches sent."""
        return self._next - self._first

    def publish(self, event: Event) -> None:
        """Queue an event; only one thread may call this."""
        if self._failed:
            return
        self._events.append(event)
        if not self._is_woken:
            self._is_woken = True
            self._wake_up()

    def close(self) -> None:
        """Send what is queued, and close the sockets."""
        self._closing = True
        self._wake_up()
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of bytes that wake the thread up anyway
            self._wake.send(b"\0")

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            logger.exception("KV-cache events are not published any more")
            self._failed = True
            self._events.clear()
        finally:
            self._sockets.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        replay = self._sockets.replay
        if replay is not None:
            poller.register(replay, zmq.POLLIN)
        while not (self._closing and not self._events):
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
                self._is_woken = False  # before the events are taken: a later one wakes this thread up again
            self._send_batch()
            if replay is not None and replay in ready:
                self._replay(replay)

    def _send_batch(self) -> None:
        count = len(self._events)
        if not count:
            return
        events = [self._events.popleft() for _ in range(count)]
        number, payload = self._next, self._encode(time.time(), events)
        self._next += 1
        self._sockets.publisher.send_multipart((self._topic, number.to_bytes(NUMBER_BYTES, "big"), payload))
        self._buffer.append(SentBatch(number, events, payload))

    def _replay(self, replay: zmq.Socket[bytes]) -> None:
        """Answer one request for earlier batches."""
        *address, request = replay.recv_multipart()
        if len(address) != 2 or address[1] or len(request) != NUMBER_BYTES:
            logger.debug("A request for a replay is ignored: it has to be an empty frame and a number of 8 bytes")
            return
        send: Callable[..., object] = replay.send_multipart
        for number, payload in self._buffer.since(int.from_bytes(request, "big")):
            send((*address, number.to_bytes(NUMBER_BYTES, "big"), payload))
        send((*address, END, b""))
