"""``/v1/files``: the inputs and outputs of batches, and images."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect

from sglang_plug_api.batches.models import (
    IMAGE_PURPOSES,
    INPUT_PREFIX,
    INPUT_PURPOSE,
    FileQuery,
    FileRecord,
    fresh_id,
)
from sglang_plug_api.batches.storage import DurableFile, Storage, refusal
from sglang_plug_api.batches.uploads import OVERHEAD, Form, receive_file
from sglang_plug_api.bodies import read_query
from sglang_plug_api.errors import SHOWN, ApiError, json_response
from sglang_plug_api.streaming import CLIENT_LEFT
from sglang_plug_api.text import TextEngine

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
    """The routes."""
    storage = Storage(engine.config.storage)
    router = APIRouter(tags=["OpenAI"], lifespan=storage.lifespan)

    async def upload(request: Request) -> Response:
        return json_response((await _upload(request, storage)).shown())

    upload.__dict__["body_limit"] = storage.config.max_file_bytes + OVERHEAD
    router.add_api_route("/v1/files", upload, methods=["POST"], openapi_extra=UPLOAD_BODY, summary="Upload a file")

    @router.get("/v1/files", summary="The files")
    async def files(request: Request) -> Response:
        query = read_query(request, FileQuery)
        page = await storage.ask(
            lambda store: store.files(
                limit=query.limit, after=query.after, ascending=query.order == "asc", purpose=query.purpose
            )
        )
        return json_response(page.shown())

    @router.get("/v1/files/{id}", summary="One file")
    async def file(id: str) -> Response:
        return json_response((await storage.ask(lambda store: store.file(id))).shown())

    @router.get("/v1/files/{id}/content", summary="A file's content")
    async def content(id: str) -> Response:
        found = await storage.ask(lambda store: store.file(id))
        return FileResponse(storage.path(found.id), media_type="application/octet-stream")

    @router.delete("/v1/files/{id}", summary="Delete a file")
    async def delete(id: str) -> Response:
        await storage.ask(lambda store: store.remove_file(id))
        await asyncio.to_thread(storage.path(id).unlink, missing_ok=True)
        return json_response({"id": id, "object": "file", "deleted": True})

    return router


async def _upload(request: Request, storage: Storage) -> FileRecord:
    """Store the request's file. It counts as stored once it is in the table, and is complete by then."""
    await storage.ask(lambda store: store.check_room())
    id = fresh_id(INPUT_PREFIX)
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
        raise ApiError("the client left before the file was complete", CLIENT_LEFT) from None
    except OSError as error:
        raise refusal(error) from error
    record = FileRecord(
        id=id, purpose=purpose, filename=form.filename or "", bytes=file.size, created_at=int(time.time())
    )
    try:
        await storage.ask(lambda store: store.add_file(record))
    except ApiError:
        file.discard()
        raise
    return record


def _purpose(form: Form) -> str:
    if any(name.startswith("expires_after") for name in form.fields):
        raise ApiError("expires_after is not supported: files are kept until they are deleted", param="expires_after")
    purpose = form.fields.get("purpose")
    if purpose not in PURPOSES:
        given = "missing" if purpose is None else repr(purpose[:SHOWN])
        raise ApiError(f"purpose must be one of {', '.join(map(repr, PURPOSES))}; it is {given}", param="purpose")
    return purpose
