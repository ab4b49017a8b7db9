"""The example of ``check_kv_store``: a store with a secret of its own."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from sglang_plug_backends.kv_stores.settings import TransferSettings

from .store import TransferStore


def open_store(folder: Path, capacity: int) -> TransferStore:
    """Make a store of ``capacity`` bytes, whose secret is in ``folder``."""
    secret = folder / "secret"
    if not secret.exists():
        secret.write_text(secrets.token_hex(32), encoding="ascii")
    return TransferStore(TransferSettings(secret_file=str(secret), bytes=capacity))


def example() -> dict[str, Any]:
    """Return the arguments of ``check_kv_store`` besides the store's name."""
    return {"make": open_store}
