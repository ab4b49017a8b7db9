"""``POST /abort_request``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.http.auth import guard
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.protocol.abort import AbortBody
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["native"])
    check_admin = guard("admin", engine.config)

    @takes(router, "/abort_request", AbortBody, summary="End a request by its id; abort_all needs the admin key")
    async def abort_request(request: Request) -> Response:
        body = await read_body(request, AbortBody)
        if body.abort_all:
            await check_admin(request)
        return json_response({"aborted": engine.abort(None if body.abort_all else body.rid, current_caller())})

    return router
