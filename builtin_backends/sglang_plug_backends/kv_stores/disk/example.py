"""The arguments with which the disk store is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_plug_backends.kv_stores.settings import DiskSettings

from .store import DiskStore


def open_store(folder: Path, capacity: int) -> DiskStore:
    """Open the disk store in ``folder``."""
    return DiskStore(DiskSettings(path=str(folder / "blocks"), bytes=capacity))


def example() -> dict[str, Any]:
    """Return the arguments of ``check_kv_store`` besides the store's name."""
    return {"make": open_store, "durable": True}
