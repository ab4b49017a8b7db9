"""The example of ``check_kv_store``: a store with a secret of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_plug_backends.kv_stores.settings import TransferSettings

from .secret import new_secret
from .store import TransferStore


def open_store(folder: Path, capacity: int) -> TransferStore:
    """Make a store of ``capacity`` bytes, whose secret is in ``folder``."""
    secret = folder / "secret"
    if not secret.exists():
        secret.write_bytes(new_secret())
    return TransferStore(TransferSettings(secret_file=str(secret), bytes=capacity))


def example() -> dict[str, Any]:
    """Return the arguments of ``check_kv_store`` besides the store's name."""
    return {"make": open_store}
