"""Prompts whose blocks are sent to another engine, or are awaited from there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_plug import KVBlockPart, KVStore, KVTransferStore, MetricCounter, panics_as_errors

from .tier import RETRY_SECONDS

logger = logging.getLogger(__name__)

METRICS = {
    "sent": "Prompts whose blocks were sent to another engine",
    "sent_parts": "Parts of blocks that were sent to another engine while the rest of them was computed",
    "send_errors": "Calls that failed to send blocks to another engine",
    "received": "Prompts whose blocks arrived from another engine in time",
    "late": "Prompts whose blocks did not arrive from another engine in time, and were computed as far as they lacked",
}
"""Count of transfers -> description of its metric."""


@dataclass(slots=True)
class TransferCounts:
    """Counters of transfers since the start."""

    sent: int = 0
    sent_parts: int = 0
    send_errors: int = 0
    received: int = 0
    late: int = 0


class Transfers:
    """A store that can transfer. Its methods do not raise.

    Args:
        store: the store.
        seconds: time for which a request waits for its blocks.
    """

    def __init__(self, store: KVTransferStore, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._lock = threading.Lock()
        self._retries: dict[str, float] = {}
        """Addresses that could not be reached -> time from which on they are tried again."""
        self._counts = TransferCounts()
        self._receiving_failed = False

    @classmethod
    def of(cls, stores: Mapping[str, KVStore], seconds: float) -> Transfers | None:
        """Return the transfers of the first store that can; ``None`` if none can."""
        store = next((store for store in stores.values() if isinstance(store, KVTransferStore)), None)
        return None if store is None else cls(store, seconds)

    def reaches(self, address: str) -> bool:
        """Report whether blocks can probably be sent to an address: that has not failed in the last seconds."""
        with self._lock:
            return time.monotonic() >= self._retries.get(address, 0.0)

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        """Send blocks, see ``KVTransferStore.send``; an address that could not be reached is left alone for a while."""
        if self._sent(address, lambda: self._store.send(keys, address, completes)):
            with self._lock:
                self._counts.sent += bool(completes)

    def send_parts(self, parts: Callable[[], Sequence[KVBlockPart]], address: str) -> None:
        """Send the parts of blocks that a function returns, see ``KVTransferStore.send_parts``."""
        counts = list[int]()

        def send() -> None:
            content = parts()
            counts.append(len(content))
            self._store.send_parts(content, address)

        if self._sent(address, send):
            with self._lock:
                self._counts.sent_parts += sum(counts)

    def _sent(self, address: str, send: Callable[[], None]) -> bool:
        """Call ``send`` unless the address could not be reached a moment ago; report whether it did not raise."""
        if not self.reaches(address):
            return False
        try:
            with panics_as_errors():
                send()
        except Exception as error:
            self._failed(address, error)
            return False
        with self._lock:
            self._retries.pop(address, None)
        return True

    def deadline(self) -> float:
        """Return the time until which a request that arrives now waits for its blocks."""
        return time.monotonic() + self._seconds

    def is_over(self, transfer: str, deadline: float) -> bool:
        """Report whether the blocks of a transfer have arrived, or are not waited for any longer."""
        is_received = self._received(transfer)
        is_late = not is_received and (is_received is None or time.monotonic() > deadline)
        self._counts.received += bool(is_received)
        self._counts.late += is_late
        return bool(is_received) or is_late

    def _received(self, transfer: str) -> bool | None:
        """Report whether the blocks of a transfer have arrived; ``None`` if the store cannot tell."""
        try:
            with panics_as_errors():
                return self._store.received(transfer)
        except Exception as error:
            if not self._receiving_failed:
                self._receiving_failed = True
                logger.warning("Blocks from another engine are not waited for, and are computed instead: %s", error)
            return None

    def info(self) -> dict[str, Any]:
        """Return address and counts as plain data."""
        return {"address": self._store.address, **asdict(self._counts)}

    def counters(self) -> Iterator[MetricCounter]:
        """Yield the counts, as metrics."""
        for name, description in METRICS.items():
            yield MetricCounter(f"kv_transfers_{name}_total", description, (), float(getattr(self._counts, name)))

    def _failed(self, address: str, error: Exception) -> None:
        with self._lock:
            is_new = address not in self._retries
            self._retries[address] = time.monotonic() + RETRY_SECONDS
            self._counts.send_errors += 1
        if is_new:
            logger.warning("Blocks are not sent to another engine, which computes them instead: %s", error)
