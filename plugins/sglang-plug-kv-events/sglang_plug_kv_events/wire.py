"""The bytes of a batch: msgpack with the field names and the order of fields that vLLM and SGLang have.

An ``EventBatch`` is ``ts``, ``events``, ``data_parallel_rank``. ``array`` writes it and its events as arrays, an event
with its type first; decoders of older versions ignore further elements. ``map`` writes maps, an event with ``type``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from .events import BlockRemoved, BlockStored, Event

NO_ADAPTER_NUMBER: None = None
"""Adapters have names here, and no numbers."""


@dataclass(frozen=True, slots=True)
class EventFormat:
    """Encodes batches of one engine.

    Args:
        name: ``array`` or ``map``.
        block_size: tokens of a block.
        medium: where the blocks are: ``GPU`` or ``CPU``.
        rank: number of the replica.
    """

    name: str
    block_size: int
    medium: str
    rank: int

    def encode(self, time: float, events: Iterable[Event]) -> bytes:
        """Return a batch as msgpack; ``time`` as of ``time.time()``."""
        fields = [self._fields(event) for event in events]
        if self.name == "map":
            batch: Any = {"ts": time, "events": fields, "data_parallel_rank": self.rank}
        else:
            batch = [time, [list(event.values()) for event in fields], self.rank]
        return msgspec.msgpack.encode(batch)

    def _fields(self, event: Event) -> dict[str, Any]:
        """Return the fields of an event, in the order of the array."""
        fields: dict[str, Any] = {"type": type(event).__name__}
        if isinstance(event, BlockStored):
            fields |= {
                "block_hashes": list(event.hashes),
                "parent_block_hash": event.parent,
                "token_ids": event.tokens.tolist(),
                "block_size": self.block_size,
                "lora_id": NO_ADAPTER_NUMBER,
                "medium": self.medium,
                "lora_name": event.scope.adapter,
            }
            if event.scope.keys:
                fields["extra_keys"] = [list(event.scope.keys)] * len(event.hashes)
        elif isinstance(event, BlockRemoved):
            fields |= {"block_hashes": list(event.hashes), "medium": self.medium}
        return fields


Encode = Callable[[float, Iterable[Event]], bytes]
