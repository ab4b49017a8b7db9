"""Fixtures that put batches into a store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sglang_plug import FileRecord
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from tests.api.storage_fixtures import ENDPOINT, batch_record, file_record, storage

__all__ = ["batch_record", "file_record", "storage"]


@pytest.fixture(scope="session")
def request_line() -> Callable[..., dict[str, Any]]:
    """Return a function that makes one line of an input file: ``request_line(number, **changes)``."""

    def make(number: int, **changes: Any) -> dict[str, Any]:
        body = {"prompt": f"prompt {number}"}
        return {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body, **changes}

    return make


@pytest.fixture
def add_input(storage: SQLiteStore, file_record: Callable[..., FileRecord]) -> Callable[..., Awaitable[None]]:
    """Return a function that stores the file ``input``: ``await add_input(lines)``."""

    async def add(lines: list[Any]) -> None:
        content = await storage.create_content("input")
        await content.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        await content.commit()
        await storage.add_file(file_record("input", bytes=content.size))

    return add
