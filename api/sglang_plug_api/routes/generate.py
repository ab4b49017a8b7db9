"""``POST /generate``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.native import Generation
from sglang_plug_api.protocol.native import GenerateBody
from sglang_plug_api.streaming import respond, while_connected
from sglang_plug_api.text import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["native"])

    @takes(router, "/generate", GenerateBody, methods=["POST", "PUT"], summary="Generate from text or token ids")
    async def generate(request: Request) -> Response:
        body = await read_body(request, GenerateBody)
        generation = await while_connected(request, Generation.prepare(engine, body))
        return await respond(request, body.stream, generation.events, generation.answer)

    return router
