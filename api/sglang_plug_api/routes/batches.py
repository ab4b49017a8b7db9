"""``/v1/batches``: many requests in a file, answered when there is time."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from sglang_plug_api.batches.call import check_endpoint
from sglang_plug_api.batches.models import (
    BATCH_PREFIX,
    INPUT_PURPOSE,
    WINDOWS,
    BatchBody,
    BatchQuery,
    BatchRecord,
    fresh_id,
)
from sglang_plug_api.batches.runner import Runner
from sglang_plug_api.batches.storage import Storage
from sglang_plug_api.bodies import read_body, read_query, takes
from sglang_plug_api.errors import ApiError, json_response
from sglang_plug_api.text import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """The routes, and what runs the batches behind them."""
    storage = Storage(engine.config.storage)
    runner = Runner(engine, storage)
    router = APIRouter(tags=["OpenAI"], lifespan=runner.lifespan)

    @takes(router, "/v1/batches", BatchBody, summary="Start a batch")
    async def create(request: Request) -> Response:
        body = await read_body(request, BatchBody)
        check_endpoint(request.app, body.endpoint)
        batch = _new(body, engine.model_name)
        source = await storage.ask(lambda store: store.file(body.input_file_id))
        if source.purpose != INPUT_PURPOSE:
            text = f"file {source.id!r} has purpose {source.purpose!r}; an input has {INPUT_PURPOSE!r}"
            raise ApiError(text, param="input_file_id")
        await storage.ask(lambda store: store.add_batch(batch))
        runner.wake()
        return json_response(batch.shown())

    @router.get("/v1/batches", summary="The batches")
    async def batches(request: Request) -> Response:
        query = read_query(request, BatchQuery)
        page = await storage.ask(
            lambda store: store.batches(limit=query.limit, after=query.after, ascending=query.order == "asc")
        )
        return json_response(page.shown())

    @router.get("/v1/batches/{id}", summary="One batch")
    async def batch(id: str) -> Response:
        return json_response((await storage.ask(lambda store: store.batch(id))).shown())

    @router.post("/v1/batches/{id}/cancel", summary="Cancel a batch")
    async def cancel(id: str) -> Response:
        found = await _cancel(storage, id)
        runner.wake()
        return json_response(found.shown())

    return router


def _new(body: BatchBody, model: str) -> BatchRecord:
    now = int(time.time())
    return BatchRecord(
        id=fresh_id(BATCH_PREFIX),
        model=model,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + WINDOWS[body.completion_window],
        metadata=body.metadata,
    )


async def _cancel(storage: Storage, id: str) -> BatchRecord:
    """Mark a batch as to be cancelled, also a second time. Raises ``ApiError`` if it is over."""
    found = await storage.ask(lambda store: store.move(id, "cancelling", int(time.time())))
    if found.status not in ("cancelling", "cancelled"):
        raise ApiError(f"batch {found.id!r} is {found.status} and cannot be cancelled any more")
    return found
