"""The KV store whose blocks are sent to other engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from sglang_plug import KVBlock, KVStoreError, KVStoreStats, KVTransferStore
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings, TransferSettings

from .receiver import Receiver
from .secret import CurveKeys, read_secret
from .sender import Senders


class TransferStore(KVTransferStore):
    """Keeps blocks in the host's memory, sends them to the stores of other engines, and receives theirs.

    Connections are encrypted and authenticated by CURVE, with keys that are derived from a secret.

    Args:
        settings: budget, secret and address. Raises ``ConfigError`` if there is no secret, or if it cannot listen.
    """

    verifies = True

    def __init__(self, settings: TransferSettings) -> None:
        keys = CurveKeys.of(read_secret(settings))
        self._memory = HostStore(HostSettings(bytes=settings.bytes))
        self._receiver = Receiver(self._memory, keys, settings.host, settings.port)
        self._sending = threading.Lock()
        self._senders = Senders(keys, settings.timeout_seconds)

    @property
    def address(self) -> str:
        """The address at which it receives blocks."""
        return self._receiver.address

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        """Send those of the blocks that the other store lacks; see ``KVTransferStore.send``."""
        with self._sending:
            sender = self._senders.to(address)
            lacking = sender.lacking(keys) if keys else []
            for key, block in zip(lacking, self._memory.load(lacking, time.monotonic()), strict=True):
                if not isinstance(block, KVStoreError):
                    sender.send(KVBlock(key, block))
            if completes:
                sender.complete(completes)

    def received(self, transfer: str) -> bool:
        """Report whether a transfer is complete."""
        return self._receiver.is_complete(transfer)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks are in memory."""
        return self._memory.lookup(keys)

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        """Return blocks that are in memory."""
        return self._memory.load(keys, deadline)

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Keep blocks; drop the least recently used ones beyond the budget."""
        self._memory.store(blocks)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Drop these blocks."""
        self._memory.delete(keys)

    def clear(self) -> None:
        """Drop all blocks of this engine; each engine drops its own."""
        self._memory.clear()

    def stats(self) -> KVStoreStats:
        """Return the contents."""
        return self._memory.stats()

    def close(self) -> None:
        """Stop sending and receiving."""
        self._receiver.close()
        with self._sending:
            self._senders.close()
