"""The KV store whose blocks are sent to other engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from sglang_plug import KVBlock, KVBlockPart, KVStoreError, KVTransferStore
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings, TransferSettings

from .partial_blocks import PartialBlocks
from .receiver import Receiver
from .secret import CurveKeys, read_secret
from .sender import Senders

PARTIAL_SHARE = 2
"""Part of the budget that blocks may take of which parts are missing."""


class TransferStore(HostStore, KVTransferStore):
    """Keeps blocks in the host's memory, sends them to the stores of other engines, and receives theirs.

    Connections are encrypted and authenticated by CURVE, with keys that are derived from a secret. ``clear`` drops the
    blocks of this engine; each engine drops its own.

    Args:
        settings: budget, secret and address. Raises ``ConfigError`` if there is no secret, or if it cannot listen.
    """

    def __init__(self, settings: TransferSettings) -> None:
        super().__init__(HostSettings(bytes=settings.bytes))
        keys = CurveKeys.of(read_secret(settings))
        self._partial = PartialBlocks(self._capacity // PARTIAL_SHARE)
        self._receiver = Receiver(self, keys, settings.host, settings.port)
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
            for key, block in zip(lacking, self.load(lacking, time.monotonic()), strict=True):
                if not isinstance(block, KVStoreError):
                    sender.send(KVBlock(key, block))
            if completes:
                sender.complete(completes)

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        """Send parts of the blocks that the other store lacks; see ``KVTransferStore.send_parts``."""
        with self._sending:
            self._senders.to(address).send_parts(parts)

    def store_part(self, part: KVBlockPart) -> None:
        """Keep a part that another store sent; once all parts of its block are here, the block is present.

        Raises ``ValueError`` if it does not fit the block's other parts.
        """
        with self._lock:
            if part.key in self._blocks:
                return
            before = self._partial.bytes
            data = self._partial.add(part)
            self._bytes += self._partial.bytes - before
            self._drop_oldest()
        if data is not None:
            self.store([KVBlock(part.key, data)])

    def _drop_all(self) -> None:
        """Drop all blocks, and parts of blocks; the lock is held."""
        super()._drop_all()
        self._partial.clear()

    def received(self, transfer: str) -> bool:
        """Report whether a transfer is complete."""
        return self._receiver.is_complete(transfer)

    def close(self) -> None:
        """Stop sending and receiving."""
        self._receiver.close()
        with self._sending:
            self._senders.close()
