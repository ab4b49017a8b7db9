"""``/v1/batches``: files of many requests that are answered when the server has time."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from sglang_plug import BatchRecord
from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.batches.records import (
    BATCH_PREFIX,
    COMPLETION_WINDOWS,
    INPUT_PURPOSE,
    BatchBody,
    BatchQuery,
    batch_object,
    list_object,
    new_record_id,
)
from sglang_plug_api.batches.route_call import check_endpoint
from sglang_plug_api.batches.runner import BatchRunner
from sglang_plug_api.http.request_body import read_body, read_query, takes
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.stores.storage import Storage
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes; their lifespan runs the batches."""
    storage, store = engine.server.storage, engine.server.storage.store
    runner = BatchRunner(engine, storage)
    router = APIRouter(tags=["OpenAI"], lifespan=runner.lifespan)

    @takes(router, "/v1/batches", BatchBody, summary="Start a batch")
    async def create(request: Request) -> Response:
        body = await read_body(request, BatchBody)
        check_endpoint(request.app, body.endpoint)
        batch = _new(body, engine.model_name)
        owner = current_caller().scope
        source = await storage.client_call(store.file(body.input_file_id, owner))
        if source.purpose != INPUT_PURPOSE:
            text = f"file {source.id!r} has purpose {source.purpose!r}; an input has {INPUT_PURPOSE!r}"
            raise ApiError(text, param="input_file_id")
        await storage.client_call(store.add_batch(batch))
        runner.wake()
        return json_response(batch_object(batch))

    @router.get("/v1/batches", summary="The batches")
    async def batches(request: Request) -> Response:
        query, owner = read_query(request, BatchQuery), current_caller().scope
        page = await storage.client_call(
            store.batches(limit=query.limit, after=query.after, ascending=query.order == "asc", owner=owner)
        )
        return json_response(list_object(page, batch_object))

    @router.get("/v1/batches/{id}", summary="One batch")
    async def batch(id: str) -> Response:
        owner = current_caller().scope
        return json_response(batch_object(await storage.client_call(store.batch(id, owner))))

    @router.post("/v1/batches/{id}/cancel", summary="Cancel a batch")
    async def cancel(id: str) -> Response:
        batch = await _cancel(storage, id)
        runner.wake()
        return json_response(batch_object(batch))

    return router


def _new(body: BatchBody, model: str) -> BatchRecord:
    now = int(time.time())
    return BatchRecord(
        id=new_record_id(BATCH_PREFIX),
        model=model,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + COMPLETION_WINDOWS[body.completion_window],
        metadata=body.metadata,
        owner=current_caller().owner,
    )


async def _cancel(storage: Storage, id: str) -> BatchRecord:
    """Request the cancellation of a batch; repeating it is allowed. Raises ``ApiError`` if the batch has ended."""
    store = storage.store
    await storage.client_call(store.batch(id, current_caller().scope))
    batch = await storage.client_call(store.move(id, "cancelling", int(time.time())))
    if batch.status not in ("cancelling", "cancelled"):
        raise ApiError(f"batch {batch.id!r} is {batch.status} and cannot be cancelled any more")
    return batch
