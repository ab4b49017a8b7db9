"""Arguments for the conformance test of the store ``sqlite``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_plug import StoreContext

from .store import SQLiteStore


def open_store(folder: Path, context: StoreContext) -> SQLiteStore:
    """Return the store in ``folder``."""
    return SQLiteStore(replace(context, folder=str(folder)))


def arguments() -> Mapping[str, Any]:
    """Return the arguments of ``check_store``."""
    return {"make": open_store}
