"""``POST /encode``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.native_pooling import pooled_answer
from sglang_plug_api.protocol.native import PoolBody
from sglang_plug_api.streaming import unless_disconnected
from sglang_plug_api.text import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["native"])

    @takes(router, "/encode", PoolBody, methods=["POST", "PUT"], summary="A vector, or scores, for each text")
    async def encode(request: Request) -> Response:
        body = await read_body(request, PoolBody)
        return await unless_disconnected(request, pooled_answer(engine, body, "embed", "classify"))

    return router
