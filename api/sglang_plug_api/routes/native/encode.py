"""``POST /encode``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import response_unless_disconnected
from sglang_plug_api.pooling.native_pooling import pool_response
from sglang_plug_api.protocol.native import PoolBody
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["native"])

    @takes(router, "/encode", PoolBody, methods=["POST", "PUT"], summary="A vector, or scores, for each text")
    async def encode(request: Request) -> Response:
        body = await read_body(request, PoolBody)
        return await response_unless_disconnected(request, pool_response(engine, body, "embed", "classify"))

    return router
