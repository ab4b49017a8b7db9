"""``POST /generate``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import cancel_on_disconnect, respond
from sglang_plug_api.native.generate import Generation
from sglang_plug_api.protocol.native import GenerateBody, SamplingBody
from sglang_plug_api.protocol.sampling import renamed_params
from sglang_plug_api.text.text_engine import TextEngine

NAMES = SamplingBody.model_validate({}).names()
"""The names of parameters in ``sampling_params``."""


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["native"])

    @takes(router, "/generate", GenerateBody, methods=["POST", "PUT"], summary="Generate from text or token ids")
    async def generate(request: Request) -> Response:
        body = await read_body(request, GenerateBody)
        ids = body.rid if isinstance(body.rid, list) else [body.rid]
        with renamed_params(NAMES), engine.preparing(*ids):
            generation = await cancel_on_disconnect(request, Generation.prepare(engine, body))
        return await respond(request, body.stream, generation.events, generation.answer, id_header(generation.id))

    return router
