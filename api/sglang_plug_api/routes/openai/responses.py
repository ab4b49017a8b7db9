"""``/v1/responses``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.answers.large_json import large_json_response
from sglang_plug_api.http.middleware import client_request_id, id_header
from sglang_plug_api.http.request_body import read_body, read_query, takes
from sglang_plug_api.http.streaming import EventStream, cancel_on_disconnect, respond
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.responses.input_items import ItemQuery, RetrieveQuery
from sglang_plug_api.responses.service import ResponsesService
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    responses = ResponsesService(engine)
    router = APIRouter(tags=["OpenAI"], lifespan=responses.lifespan)

    @takes(router, "/v1/responses", ResponsesBody, summary="Create a response, which is stored for the next turn")
    async def create(request: Request) -> Response:
        body = await read_body(request, ResponsesBody)
        request_id = (client_request_id(request.scope) or b"").decode("ascii")
        with engine.preparing(request_id):
            response = await cancel_on_disconnect(request, responses.prepare(body, request_id))
        if body.background:
            started = await responses.start(response)
            return (
                EventStream(await responses.replay(response.id), id_header(response.id), done=False)
                if body.stream
                else (json_response(started, headers=id_header(response.id)))
            )
        events, answer = partial(responses.events, response), partial(responses.answer, response)
        return await respond(request, body.stream, events, answer, id_header(response.id), done=False)

    @takes(router, "/v1/responses/input_tokens", ResponsesBody, summary="Count the tokens of a prompt")
    async def count(request: Request) -> Response:
        body = await read_body(request, ResponsesBody)
        return json_response(await cancel_on_disconnect(request, responses.count(body)))

    @router.get("/v1/responses/{response_id}/input_items", summary="List input items of a response")
    async def input_items(request: Request, response_id: str) -> Response:
        return json_response(await responses.input_items(response_id, read_query(request, ItemQuery)))

    @router.get("/v1/responses/{response_id}", summary="Get a stored or running response")
    async def retrieve(request: Request, response_id: str) -> Response:
        query = read_query(request, RetrieveQuery)
        if query.stream:
            return EventStream(await responses.replay(response_id, query.starting_after), done=False)
        return await large_json_response(await responses.retrieve(response_id))

    @router.delete("/v1/responses/{response_id}", summary="Delete a stored response")
    async def delete(response_id: str) -> Response:
        return json_response(await responses.delete(response_id))

    @router.post("/v1/responses/{response_id}/cancel", summary="Cancel a background response")
    async def cancel(response_id: str) -> Response:
        return await large_json_response(await responses.cancel(response_id))

    return router
