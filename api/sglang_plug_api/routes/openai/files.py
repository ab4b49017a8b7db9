"""``/v1/files``: inputs and outputs of batches, and images."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from sglang_plug import ContentMissing, ContentWriter, FileRecord, StorageError
from sglang_plug_api.answers.errors import SHOWN, ApiError, json_response
from sglang_plug_api.batches.records import (
    IMAGE_PURPOSES,
    INPUT_PREFIX,
    INPUT_PURPOSE,
    FileQuery,
    file_object,
    list_object,
    new_record_id,
)
from sglang_plug_api.batches.uploads import OVERHEAD, Form, UploadRoom, receive_file
from sglang_plug_api.http.request_body import read_query
from sglang_plug_api.http.streaming import CLIENT_CLOSED_REQUEST, first_of
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.stores.storage import Storage, storage_refusal
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/octet-stream"
PURPOSES = (INPUT_PURPOSE, *IMAGE_PURPOSES)
FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
    },
}
RANGES = re.compile(r"\s*bytes\s*=(.*)", re.IGNORECASE | re.DOTALL)
RANGE = re.compile(r"(\d{1,18})\s*-\s*(\d{1,18})?|-\s*(\d{1,18})")
"""``FIRST-LAST``, ``FIRST-`` or ``-LENGTH``."""
UPLOAD_BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}}


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    storage, store = engine.server.storage, engine.server.storage.store
    limit, room = engine.config.storage.max_file_bytes, UploadRoom(engine.config.storage.max_storage_bytes)
    router = APIRouter(tags=["OpenAI"])

    async def upload(request: Request) -> Response:
        with room.upload() as take_room:
            return json_response(file_object(await _upload(request, storage, limit, take_room)))

    upload.__dict__["body_limit"] = limit + OVERHEAD
    router.add_api_route("/v1/files", upload, methods=["POST"], openapi_extra=UPLOAD_BODY, summary="Upload a file")

    @router.get("/v1/files", summary="The files")
    async def files(request: Request) -> Response:
        query, owner = read_query(request, FileQuery), current_caller().scope
        page = await storage.client_call(
            store.files(
                limit=query.limit,
                after=query.after,
                ascending=query.order == "asc",
                purpose=query.purpose,
                owner=owner,
            )
        )
        return json_response(list_object(page, file_object))

    @router.get("/v1/files/{id}", summary="One file")
    async def file(id: str) -> Response:
        owner = current_caller().scope
        return json_response(file_object(await storage.client_call(store.file(id, owner))))

    @router.get("/v1/files/{id}/content", summary="A file's content")
    async def content(request: Request, id: str) -> Response:
        owner = current_caller().scope
        record = await storage.client_call(store.file(id, owner))
        path = store.content_path(record.id)
        try:
            if path is None:
                return await _streamed(storage, record)
            status = await _file_status(path, record)
        except ContentMissing:
            logger.error("the content of file %s is missing: %s", record.id, path or store.location)
            raise ApiError(
                f"the content of file {record.id!r} is missing from the server's file storage", 503
            ) from None
        response = FileResponse(path, media_type=CONTENT_TYPE, stat_result=status)
        _check_range(request, response, status.st_size)
        return response

    @router.delete("/v1/files/{id}", summary="Delete a file")
    async def delete(id: str) -> Response:
        owner = current_caller().scope
        await storage.client_call(store.remove_file(id, owner))
        return json_response({"id": id, "object": "file", "deleted": True})

    return router


async def _file_status(path: Path, file: FileRecord) -> os.stat_result:
    """Return the status of the local file that has the content of ``file``. Raises ``ContentMissing``."""
    try:
        status = await asyncio.to_thread(path.stat)
    except (FileNotFoundError, NotADirectoryError):
        raise ContentMissing(file.id) from None
    if not stat.S_ISREG(status.st_mode):
        raise ContentMissing(file.id)
    return status


def _check_range(request: Request, response: FileResponse, size: int) -> None:
    """Check the header ``Range``, which ``response`` reads: one that is malformed or not in bytes is removed.

    Raises ``ApiError`` with status 416 if a range begins behind the end of the file of ``size`` bytes.
    """
    text, condition = request.headers.get("range"), request.headers.get("if-range")
    if text is None or (condition and condition not in (response.headers["etag"], response.headers["last-modified"])):
        return
    starts = _range_starts(text, size)
    if starts is None:
        headers = request.scope["headers"]
        request.scope["headers"] = [(name, value) for name, value in headers if name.lower() != b"range"]
    elif any(start >= size for start in starts):
        headers = {"content-range": f"bytes */{size}"}
        raise ApiError(f"the file has {size} bytes; none are in the range {text[:SHOWN]!r}", 416, headers=headers)


def _range_starts(text: str, size: int) -> list[int] | None:
    """Return where the ranges of a header begin in a file of ``size`` bytes; ``None`` if the header has to be ignored.

    That is what RFC 9110 demands of other units than bytes, and allows for ranges that are malformed.
    """
    ranges = RANGES.fullmatch(text)
    starts = list[int]()
    for part in ranges[1].split(",") if ranges else ():
        if not part.strip():
            continue
        match = RANGE.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            return None
        starts.append(max(0, size - int(match[3])) if match[3] else int(match[1]))
    return starts or None


async def _streamed(storage: Storage, file: FileRecord) -> Response:
    """Return the content of a file that is not in a local file. Raises ``ApiError`` and ``ContentMissing``."""
    parts = await storage.client_call(first_of(_parts(storage, file)))
    return StreamingResponse(parts, media_type=CONTENT_TYPE, headers={"content-length": str(file.bytes)})


async def _parts(storage: Storage, file: FileRecord) -> AsyncGenerator[bytes, None]:
    async for part in storage.store.read_content(file.id):
        yield part


async def _upload(request: Request, storage: Storage, limit: int, take_room: Callable[[int], None]) -> FileRecord:
    """Store the request's file. It counts as stored once it is registered, and is complete by then."""
    store = storage.store
    await storage.client_call(store.check_room())
    id = new_record_id(INPUT_PREFIX)
    content = await storage.client_call(store.create_content(id))
    try:
        form = await _receive(request, storage, content, limit, take_room)
        record = FileRecord(
            id=id,
            purpose=_purpose(form),
            filename=form.filename or "",
            bytes=content.size,
            created_at=int(time.time()),
            owner=current_caller().owner,
        )
    except BaseException:
        await content.discard()
        raise
    # a cancellation must not leave a registered file without its content
    await asyncio.shield(_register(storage, content, record))
    return record


async def _register(storage: Storage, content: ContentWriter, record: FileRecord) -> None:
    try:
        await storage.client_call(content.commit())
        await storage.client_call(storage.store.add_file(record))
    except BaseException:
        await content.discard()
        raise


async def _receive(
    request: Request, storage: Storage, content: ContentWriter, limit: int, take_room: Callable[[int], None]
) -> Form:
    """Write the request's file to ``content``. Raises ``ApiError``."""
    try:
        return await receive_file(request, content, limit, take_room)
    except ClientDisconnect:
        raise ApiError("the client disconnected before the file was complete", CLIENT_CLOSED_REQUEST) from None
    except StorageError as error:
        storage.report(error)
        raise storage_refusal(error) from error


def _purpose(form: Form) -> str:
    if any(name.startswith("expires_after") for name in form.fields):
        raise ApiError("expires_after is not supported: files are kept until they are deleted", param="expires_after")
    purpose = form.fields.get("purpose")
    if purpose not in PURPOSES:
        sent = "missing" if purpose is None else repr(purpose[:SHOWN])
        raise ApiError(f"purpose must be one of {', '.join(map(repr, PURPOSES))}; it is {sent}", param="purpose")
    return purpose
