"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.large_json import LargeList, large_json_response
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import response_unless_disconnected
from sglang_plug_api.pooling.pooling import pool_inputs, pooling_task, prompt_usage, truncate_vector
from sglang_plug_api.protocol.embeddings import EmbeddingsBody
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["OpenAI"])

    @takes(
        router,
        "/v1/embeddings",
        EmbeddingsBody,
        summary="A vector for each text",
        check=lambda: pooling_task(engine, "embed"),
    )
    async def embeddings(request: Request) -> Response:
        body = await read_body(request, EmbeddingsBody)
        return await response_unless_disconnected(request, _embed(engine, body))

    return router


async def _embed(engine: TextEngine, body: EmbeddingsBody) -> Response:
    id, prompts, vectors = await pool_inputs(engine, body, "embed")

    def entry(index: int) -> dict[str, Any]:
        vector = truncate_vector(engine, vectors[index], body.dimensions)
        return {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format or "float")}

    data = LargeList(range(len(vectors)), entry, len(vectors[0]))
    model = body.model or engine.model_name
    answer = {"object": "list", "data": data, "model": model, "usage": prompt_usage(prompts)}
    return await large_json_response(answer, id_header(id))


def _encoded(values: Sequence[float], form: str) -> Any:
    """Return the values as a list, or as base64 of little-endian float32."""
    if form == "float":
        return list(values)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")
