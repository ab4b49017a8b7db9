"""A subscriber that keeps an index of the blocks of one engine: a reference for routers, and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from .publisher import END, NUMBER_BYTES

FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""The fields of each type of event, in the order of the array format."""


@dataclass(frozen=True, slots=True)
class IndexedBlock:
    """A block that is in the engine's prefix cache."""

    parent: int | None
    tokens: tuple[int, ...]
    adapter: str | None
    keys: tuple[str, ...]


class Subscriber:
    """Follows one engine. What it misses between two messages, it asks for; a message that it missed before a pause of
    the engine is noticed with the next one, or by calling ``replay`` when ``receive`` returns 0.

    Args:
        endpoint: address of the publisher.
        replay_endpoint: address for replays.
        topic: the publisher's.
        timeout: seconds that a replay may take.
    """

    def __init__(self, endpoint: str, replay_endpoint: str, *, topic: str = "kv-events", timeout: float = 60.0) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoint, self._replay_endpoint, self._timeout = endpoint, replay_endpoint, timeout
        self._topic = topic.encode()
        self.blocks: dict[int, IndexedBlock] = {}
        """Hash -> block."""
        self.replica: int | None = None
        """Number of the replica, as the last batch says."""
        self.next = 0
        """Number of the first batch that was not applied."""
        self.connect()

    def connect(self) -> Sequence[int]:
        """Subscribe, and catch up; return the numbers of the batches that were replayed."""
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, self._topic)
        self._socket.connect(self._endpoint)
        return self.replay()

    def disconnect(self) -> None:
        """Receive nothing until ``connect`` is called."""
        self._socket.close(linger=0)

    def close(self) -> None:
        """Close the sockets."""
        self.disconnect()
        self._context.term()

    def replay(self) -> Sequence[int]:
        """Ask for the batches from ``next`` on; return their numbers. Raises ``TimeoutError`` without an answer."""
        numbers: list[int] = []
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RCVHWM, 0)
            dealer.connect(self._replay_endpoint)
            dealer.send_multipart((b"", self.next.to_bytes(NUMBER_BYTES, "big")))
            while True:
                if not dealer.poll(self._timeout * 1000):
                    raise TimeoutError(f"no answer from {self._replay_endpoint} within {self._timeout:g} s")
                _, number, payload = dealer.recv_multipart()
                if number == END:
                    return numbers
                numbers.append(int.from_bytes(number, "big"))
                self._apply(numbers[-1], msgspec.msgpack.decode(payload))

    def receive(self, timeout: float) -> int:
        """Wait up to ``timeout`` seconds for messages, and apply all that have arrived; return how many."""
        count = 0
        while self._socket.poll(0 if count else timeout * 1000):
            _, number, payload = self._socket.recv_multipart()
            self._take(int.from_bytes(number, "big"), msgspec.msgpack.decode(payload))
            count += 1
        return count

    def _take(self, number: int, batch: Any) -> None:
        if number > self.next:
            self.replay()
        if number >= self.next:  # it was not replayed
            self._apply(number, batch)

    def _apply(self, number: int, batch: Any) -> None:
        self.next = number + 1
        self.replica = _field(batch, 2, "data_parallel_rank")
        for event in _field(batch, 1, "events"):
            name, fields = _named(event)
            if name == "BlockStored":
                self._store(fields)
            elif name == "BlockRemoved":
                for block in fields["block_hashes"]:
                    self.blocks.pop(block, None)
            else:
                self.blocks.clear()

    def _store(self, fields: Mapping[str, Any]) -> None:
        size, parent, tokens = fields["block_size"], fields["parent_block_hash"], fields["token_ids"]
        keys = fields.get("extra_keys") or [()] * len(fields["block_hashes"])
        for index, block in enumerate(fields["block_hashes"]):
            part = tuple(tokens[index * size : (index + 1) * size])
            self.blocks[block] = IndexedBlock(parent, part, fields.get("lora_name"), tuple(keys[index]))
            parent = block

    def prefix(self, block: int) -> tuple[int, ...]:
        """Return all tokens from the beginning of the prompt to the end of a block. Raises ``KeyError`` for a gap."""
        parts: list[tuple[int, ...]] = []
        current: int | None = block
        while current is not None:
            parts.append(self.blocks[current].tokens)
            current = self.blocks[current].parent
        return tuple(token for part in reversed(parts) for token in part)


def _field(batch: Any, index: int, name: str) -> Any:
    return batch[name] if isinstance(batch, Mapping) else batch[index]


def _named(event: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the type of an event and its fields."""
    if isinstance(event, Mapping):
        return event["type"], event
    name, *values = event
    return name, dict(zip(FIELDS[name], values, strict=False))
