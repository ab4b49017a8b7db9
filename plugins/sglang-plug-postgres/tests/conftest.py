"""A PostgreSQL server, and stores in schemas of their own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _server_module() -> ModuleType:
    """Load ``server.py``, which lies next to this file and belongs to no package."""
    spec = importlib.util.spec_from_file_location("postgres_test_server", Path(__file__).with_name("server.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """A PostgreSQL server; tests are skipped where none is installed."""
    pytest.importorskip("psycopg_pool", reason="psycopg is not installed")
    module = _server_module()
    binaries = module.binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with module.postgres_server(binaries) as server:
        yield server


@pytest.fixture
async def open_store(server: Any, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Return ``open_store(schema=…, …)``, which opens a store; stores of one schema share their data."""
    from sglang_plug_postgres.settings import Settings
    from sglang_plug_postgres.store import PostgresStore

    from sglang_plug import StoreContext

    stores = []

    def make(*, schema: str = "", **settings: Any) -> Any:
        schema = schema or f"test {request.node.name}"[:63]
        stores.append(PostgresStore(StoreContext(), Settings(url=server.url, schema=schema, **settings)))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()
