"""Uploaded images are shown only to callers who may use the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import FileRecord, MediaError, StoreContext
from sglang_plug_api.responses.message_images import UploadedImage, split_images
from sglang_plug_api.service.callers import Caller, acting_as
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage

PART = {"type": "image", "where": "input.0", "image_url": None, "file_id": "picture"}
FILE = FileRecord(id="picture", purpose="vision", filename="a.png", bytes=3, created_at=1, owner="a")


async def read_as(storage: Storage, caller: Caller) -> bytes:
    with acting_as(caller):
        (turn,) = split_images([{"role": "user", "content": [PART]}], storage, supports_images=True)
    (image,) = turn.images
    assert isinstance(image.source, UploadedImage)
    return await image.source.read(100)


async def test_an_image_of_another_key_is_unknown(tmp_path: Path) -> None:
    storage = Storage(SQLiteStore(StoreContext(folder=str(tmp_path / "storage"))))
    content = await storage.store.create_content(FILE.id)
    await content.write(b"png")
    await content.commit()
    await storage.store.add_file(FILE)
    for caller in (Caller("a", can_access_all=False), Caller("admin")):
        assert await read_as(storage, caller) == b"png"
    with pytest.raises(MediaError, match="there is no file 'picture' here"):
        await read_as(storage, Caller("b", can_access_all=False))
    await storage.close()
