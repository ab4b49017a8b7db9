"""Routes called from inside answer as they do over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from sglang_plug import EngineError, RequestError
from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.batches.route_call import EngineBusy, RouteAnswer, call_route, find_endpoint
from sglang_plug_api.http.request_body import Endpoint
from sglang_plug_api.http.streaming import response_unless_disconnected
from sglang_plug_api.service.callers import Caller


def app_with(endpoint: Endpoint) -> FastAPI:
    app = FastAPI()
    app.state.endpoints = {"/v1/x": endpoint}
    return app


async def answered(endpoint: Endpoint, body: bytes = b"{}") -> RouteAnswer:
    return await call_route(app_with(endpoint), Caller(), "/v1/x", body)


async def test_the_answer() -> None:
    async def echo(request: Request) -> Response:
        body: Any = await request.json()
        return json_response({"got": body, "path": request.url.path}, headers={"x-request-id": "abc"})

    assert await answered(echo, b'{"a":1}') == RouteAnswer(200, "abc", {"got": {"a": 1}, "path": "/v1/x"})


async def test_the_client_inside_never_leaves() -> None:
    async def slow(request: Request) -> Response:
        await request.body()

        async def work() -> Response:
            for _ in range(20):
                await asyncio.sleep(0)
            return Response("done")

        return await response_unless_disconnected(request, work())

    answer = await answered(slow)
    assert (answer.status, answer.body) == (200, "done")
    assert answer.request_id


@pytest.mark.parametrize(
    ("error", "status"), [(ApiError("no", 404), 404), (RequestError("no"), 400), (ZeroDivisionError("secret"), 500)]
)
async def test_a_refusal_is_an_answer(error: Exception, status: int) -> None:
    async def refuse(request: Request) -> Response:
        raise error

    answer = await answered(refuse)
    assert answer.status == status
    assert answer.body["code"] == status
    assert "secret" not in str(answer.body)


@pytest.mark.parametrize(
    ("error", "kind"), [(RequestError("full", 503), EngineBusy), (EngineError("gone"), EngineError)]
)
async def test_what_is_no_answer(error: Exception, kind: type[Exception]) -> None:
    async def refuse(request: Request) -> Response:
        raise error

    with pytest.raises(kind):
        await answered(refuse)


async def test_a_route_that_is_not_there() -> None:
    app = FastAPI()
    app.state.endpoints = {}
    assert find_endpoint(app, "/v1/x") is None
    with pytest.raises(LookupError):
        await call_route(app, Caller(), "/v1/x", b"{}")
