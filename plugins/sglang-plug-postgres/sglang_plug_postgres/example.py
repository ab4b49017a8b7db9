"""Arguments for the conformance test: a schema of its own for each folder, in the database of a variable."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any
from unittest import SkipTest

from sglang_plug import StoreContext

from .settings import Settings
from .store import PostgresStore

VARIABLE = "SGLANG_PLUG_POSTGRES_TEST_URL"
"""Environment variable with the connection string of a database for tests."""


def open_store(folder: Path, context: StoreContext) -> PostgresStore:
    """Open the store that belongs to a folder."""
    schema = f"test_{hashlib.sha256(str(folder).encode()).hexdigest()[:24]}"
    return PostgresStore(context, Settings(url=os.environ[VARIABLE], schema=schema, connections=4))


def arguments() -> dict[str, Any]:
    """Return the arguments of ``check_store`` besides the store's name; skip the test without a database for it."""
    if VARIABLE not in os.environ:
        raise SkipTest(f"set {VARIABLE} to the connection string of a database for tests")
    return {"make": open_store}
