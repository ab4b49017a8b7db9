"""Tests of the errors that clients get from the store, and of the messages in the log."""

from __future__ import annotations

import logging

import pytest

from sglang_plug import StorageBroken, StorageFull, StorageUnavailable, UnknownId
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage, storage_refusal


def test_refusals() -> None:
    assert storage_refusal(UnknownId("x")).status == 404
    assert storage_refusal(StorageFull("full")).status == 413
    assert len(storage_refusal(UnknownId("x" * 5000)).message) < 300


def test_only_what_is_broken_is_told_to_clients() -> None:
    for is_disk_full, code in ((False, None), (True, "disk_full")):
        refusal = storage_refusal(StorageUnavailable("host db.internal is away", is_disk_full=is_disk_full))
        assert (refusal.status, refusal.code) == (503, code)
        assert "db.internal" not in refusal.message
    assert "the schema is newer" in storage_refusal(StorageBroken("the schema is newer", "upgrade it")).message


async def test_a_problem_is_logged_once_and_its_end_too(storage: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
    server = Storage(storage)

    async def fail(text: str) -> None:
        raise StorageUnavailable(text)

    with caplog.at_level(logging.WARNING):
        for text in ("away", "away", "still away"):
            with pytest.raises(ApiError, match="does not work"):
                await server.client_call(fail(text))
        assert server.status() == {"open": False, "problem": "still away"}
        await server.call(storage.check_room())
        await server.call(storage.check_room())
    assert [record.getMessage() for record in caplog.records] == [
        f"the file storage {storage.folder} failed: away",
        f"the file storage {storage.folder} failed: still away",
        "the file storage works again",
    ]
    assert server.status() == {"open": True, "problem": None}
