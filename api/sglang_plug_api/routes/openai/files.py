"""``/v1/files``: inputs and outputs of batches, and images."""

from __future__ import annotations

import asyncio
import logging
import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect

from sglang_plug_api.batches.records import (
    IMAGE_PURPOSES,
    INPUT_PREFIX,
    INPUT_PURPOSE,
    FileQuery,
    FileRecord,
    new_record_id,
)
from sglang_plug_api.batches.storage import DurableFile, Storage, storage_refusal
from sglang_plug_api.batches.uploads import OVERHEAD, Form, receive_file
from sglang_plug_api.http.callers import current_caller
from sglang_plug_api.http.errors import SHOWN, ApiError, json_response
from sglang_plug_api.http.request_body import read_query
from sglang_plug_api.http.streaming import CLIENT_CLOSED_REQUEST
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)

PURPOSES = (INPUT_PURPOSE, *IMAGE_PURPOSES)
FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
    },
}
UPLOAD_BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}}


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    storage = engine.storage
    router = APIRouter(tags=["OpenAI"])

    async def upload(request: Request) -> Response:
        return json_response((await _upload(request, storage)).as_dict())

    upload.__dict__["body_limit"] = storage.config.max_file_bytes + OVERHEAD
    router.add_api_route("/v1/files", upload, methods=["POST"], openapi_extra=UPLOAD_BODY, summary="Upload a file")

    @router.get("/v1/files", summary="The files")
    async def files(request: Request) -> Response:
        query, owner = read_query(request, FileQuery), current_caller().scope
        page = await storage.client_call(
            lambda store: store.files(
                limit=query.limit,
                after=query.after,
                ascending=query.order == "asc",
                purpose=query.purpose,
                owner=owner,
            )
        )
        return json_response(page.as_dict())

    @router.get("/v1/files/{id}", summary="One file")
    async def file(id: str) -> Response:
        owner = current_caller().scope
        return json_response((await storage.client_call(lambda store: store.file(id, owner))).as_dict())

    @router.get("/v1/files/{id}/content", summary="A file's content")
    async def content(id: str) -> Response:
        owner = current_caller().scope
        record = await storage.client_call(lambda store: store.file(id, owner))
        path = storage.path(record.id)
        if not await asyncio.to_thread(path.is_file):
            logger.error("the content of file %s is missing: %s", record.id, path)
            raise ApiError(f"the content of file {record.id!r} is missing from the server's file storage", 503)
        return FileResponse(path, media_type="application/octet-stream")

    @router.delete("/v1/files/{id}", summary="Delete a file")
    async def delete(id: str) -> Response:
        owner = current_caller().scope
        await storage.client_call(lambda store: store.remove_file(id, owner))
        await asyncio.to_thread(storage.path(id).unlink, missing_ok=True)
        return json_response({"id": id, "object": "file", "deleted": True})

    return router


async def _upload(request: Request, storage: Storage) -> FileRecord:
    """Store the request's file. It counts as stored once it is in the table, and is complete by then."""
    await storage.client_call(lambda store: store.check_room())
    id = new_record_id(INPUT_PREFIX)
    try:
        file = await asyncio.to_thread(DurableFile, storage.path(id))
        try:
            form = await receive_file(request, file, storage.config.max_file_bytes)
            purpose = _purpose(form)
            await asyncio.to_thread(file.close)
        except BaseException:
            file.discard()
            raise
    except ClientDisconnect:
        raise ApiError("the client left before the file was complete", CLIENT_CLOSED_REQUEST) from None
    except OSError as error:
        storage.report(error)
        raise storage_refusal(error) from error
    record = FileRecord(
        id=id,
        purpose=purpose,
        filename=form.filename or "",
        bytes=file.size,
        created_at=int(time.time()),
        owner=current_caller().owner,
    )
    try:
        await storage.client_call(lambda store: store.add_file(record))
    except ApiError:
        file.discard()
        raise
    return record


def _purpose(form: Form) -> str:
    if any(name.startswith("expires_after") for name in form.fields):
        raise ApiError("expires_after is not supported: files are kept until they are deleted", param="expires_after")
    purpose = form.fields.get("purpose")
    if purpose not in PURPOSES:
        sent = "missing" if purpose is None else repr(purpose[:SHOWN])
        raise ApiError(f"purpose must be one of {', '.join(map(repr, PURPOSES))}; it is {sent}", param="purpose")
    return purpose
