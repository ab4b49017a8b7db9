"""Checks of files: records, contents, limits."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial

from sglang_plug.contracts.storage.errors import ContentMissing, FileInUse, StorageFull, UnknownId
from sglang_plug.contracts.storage.store import Store

from .opened import INPUT, NOW, Servers, add_batch, add_file, file_record, listed, refused, result

NAME = "../ä 'b' \\ %_\n.jsonl"
"""A client's name for a file: no path, and nothing that a query may take for its own."""
SIZES = (0, 1, 1000, (256 << 10) - 1, 256 << 10, (1 << 20) + 7)


async def check_files(servers: Servers) -> None:
    """Records are listed in their order, in pages that have each once, to their owners only."""
    store, other = servers.open(), servers.open()
    await store.check_room()
    records = [
        file_record(f"file-{number}", owner="ab"[number % 2], purpose=("batch", "vision")[number // 5])
        for number in range(7)
    ]
    records.append(file_record("file-10", filename=NAME, created_at=NOW - 5))  # its id begins with that of another one
    for record in records:
        await add_file(store, record, b"0123456789")
    assert await other.file("file-3") == records[3], "a file is not as it was added, or not seen by another server"
    assert await other.file("file-10") == records[7], f"the filename {NAME!r} is not as it was added"
    for ascending, order in ((True, records), (False, records[::-1])):
        for limit in (3, 4, len(records)):  # the last page is full, or not
            entries = await listed(partial(other.files, ascending=ascending), limit)
            assert entries == order, f"the pages of files with ascending={ascending} are not all files in their order"
    for purpose, expected in (("batch", records[0:5:2]), ("vision", [records[6]])):
        entries = await listed(partial(store.files, ascending=True, purpose=purpose, owner="a"), 1)
        assert entries == expected, "files of other purposes or owners are listed, or some are missing"
    await refused(store.files(limit=1, after="unknown", ascending=True), UnknownId, "a page after an unknown file")
    await refused(
        store.files(limit=1, after="file-1", ascending=True, owner="a"), UnknownId, "a page after a file of b"
    )
    await refused(store.file("file-1", "a"), UnknownId, "file() of another owner")
    await refused(store.remove_file("file-1", "a"), UnknownId, "remove_file() of another owner")
    await store.remove_file("file-1", "b")
    await refused(other.file("file-1"), UnknownId, "file() of a removed file")
    kept = await listed(partial(other.files, ascending=True), 9)
    assert kept == [records[0], *records[2:]], "remove_file() removes other files, too"
    await refused(_content(other, "file-1"), ContentMissing, "read_content() of a removed file")
    adding = [asyncio.create_task(store.add_file(file_record(f"late-{number}"))) for number in range(3)]
    await asyncio.sleep(0)  # they have begun
    await store.close()
    await asyncio.gather(*adding)
    for record in (records[2], *(file_record(f"late-{number}") for number in range(3))):
        assert await store.file(record.id) == record, "a file is lost when the store is closed and opened again"


async def check_contents(servers: Servers) -> None:
    """Contents are returned as they were written, in whatever parts."""
    store, other = servers.open(), servers.open()
    for size in SIZES:
        content = bytes(number % 251 for number in range(size))
        writer = await store.create_content(f"content-{size}")
        buffer = bytearray()
        for start in range(0, size, 100_000):
            buffer[:] = content[start : start + 100_000]
            await writer.write(buffer)
            buffer[:] = b"changed"
        await writer.commit()
        assert writer.size == size, f"size is {writer.size} after {size} bytes were written"
        await store.add_file(file_record(f"content-{size}", bytes=size))
        assert await _content(other, f"content-{size}") == content, (
            f"a content of {size} bytes is not returned as it was written"
        )
        path = other.content_path(f"content-{size}")
        assert path is None or path.read_bytes() == content, "content_path() leads to another content"
    writers = [await store.create_content(f"together-{number}") for number in range(2)]
    for part in (b"first ", b"second"):
        for number, writer in enumerate(writers):
            await writer.write(b"%d: %s" % (number, part))
    for number, writer in enumerate(writers):
        await writer.commit()
        await store.add_file(file_record(f"together-{number}", bytes=writer.size))
    for number in range(len(writers)):
        content = b"%d: first %d: second" % (number, number)
        assert await _content(other, f"together-{number}") == content, "contents that are written together are mixed up"
    async with aclosing(store.read_content(f"content-{SIZES[-1]}")) as parts:
        await anext(parts)  # a reader that leaves early
    for is_committed in (False, True):
        writer = await store.create_content("discarded")
        await writer.write(b"x" * 300_000)
        if is_committed:
            await writer.commit()
        await writer.discard()
        await refused(_content(store, "discarded"), ContentMissing, "read_content() of a discarded content")
    await refused(_content(store, "unknown"), ContentMissing, "read_content() of an unknown file")


async def check_file_limits(servers: Servers) -> None:
    """Files are limited in number and in bytes, where unfinished results count, and inputs cannot be removed."""
    store = servers.open(max_files=3, max_bytes=100)
    await add_batch(store)
    await store.move("batch", "in_progress", NOW)
    await add_file(store, file_record("second", bytes=70), b"")
    await refused(store.remove_file(INPUT), FileInUse, "remove_file() of the input of an open batch")
    await refused(store.add_file(file_record("third", bytes=21)), StorageFull, "add_file() beyond max_bytes")
    await refused(
        store.add_results("batch", [result(1), result(2), result(3)]), StorageFull, "results beyond max_bytes"
    )
    assert await store.done_lines("batch") == set(), "some results are stored although there was no room for all"
    await store.add_results("batch", [result(1)])
    await refused(store.add_file(file_record("third", bytes=12)), StorageFull, "add_file(), where results take room,")
    await store.add_file(file_record("third", bytes=5))
    await refused(store.check_room(), StorageFull, "check_room() with max_files files")
    await refused(store.add_file(file_record("fourth", bytes=0)), StorageFull, "add_file() beyond max_files")
    await store.move("batch", "cancelling", NOW)
    await store.finish("batch", "cancelled", NOW, output=None, error=None)
    await store.remove_file(INPUT)
    await store.add_file(file_record("fourth", bytes=19))


async def _content(store: Store, id: str) -> bytes:
    return b"".join([part async for part in store.read_content(id)])
