"""The KV store whose blocks are sent to other engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from sglang_plug import KVBlock, KVStoreError, KVTransferStore
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings, TransferSettings

from .receiver import Receiver
from .secret import CurveKeys, read_secret
from .sender import Senders


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

    def received(self, transfer: str) -> bool:
        """Report whether a transfer is complete."""
        return self._receiver.is_complete(transfer)

    def close(self) -> None:
        """Stop sending and receiving."""
        self._receiver.close()
        with self._sending:
            self._senders.close()
