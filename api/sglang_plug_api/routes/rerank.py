"""``POST /v1/rerank``: documents in the order in which they answer a query.

Cross-encoders read query and document together. A chat model is asked whether the document answers the query, in the
words that Qwen3-Reranker was trained on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.errors import ApiError, json_response
from sglang_plug_api.job import new_id
from sglang_plug_api.pairs import judge_pairs
from sglang_plug_api.pooling import meta_info, prompt_usage
from sglang_plug_api.protocol.base import refuse
from sglang_plug_api.protocol.embeddings import RerankBody
from sglang_plug_api.streaming import unless_disconnected
from sglang_plug_api.text import TextEngine

FORMATS = ("list", "jina")


def build(engine: TextEngine) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["native"])

    @takes(router, "/v1/rerank", RerankBody, summary="Sort documents by how well they answer a query")
    async def rerank(request: Request) -> Response:
        body = await read_body(request, RerankBody)
        form = request.query_params.get("format", FORMATS[0])
        if form not in FORMATS:
            raise ApiError(f"format {form[:40]!r} is unknown; known: {', '.join(FORMATS)}", param="format")
        return await unless_disconnected(request, _answer(engine, body, form))

    takes(router, "/rerank", RerankBody, summary="As /v1/rerank")(rerank)
    return router


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A document's place in the request, and what was found of it."""

    index: int
    score: float
    relevance: float
    meta: dict[str, Any]


async def _answer(engine: TextEngine, body: RerankBody, form: str) -> Response:
    started = time.time()
    engine.check_model(body.model)
    if "generate" not in engine.info["tasks"]:
        refuse(body, "instruct", remedy="a cross-encoder is not asked in words")
    found = await judge_pairs(
        engine,
        [(body.query, text) for text in body.texts()],
        "documents",
        id=body.rid or new_id(),
        priority=body.priority or 0,
        adapter=engine.adapters.chosen(body.model),
        instruct=body.instruct,
    )
    ranked = [
        _Ranked(index, one.score, one.relevance, meta_info(engine, one.job, one.piece, started))
        for index, one in enumerate(found)
    ]
    ranked.sort(key=lambda one: -one.score)
    ranked = ranked[: body.top_n]
    if form == "list":
        return json_response([_item(one, body) for one in ranked])
    return json_response(
        {
            "id": f"rerank-{found[0].job.request}",
            "model": body.model or engine.model_name,
            "usage": prompt_usage([one.job.tokens for one in found]),
            "results": [_result(one, body) for one in ranked],
        }
    )


def _item(one: _Ranked, body: RerankBody) -> dict[str, Any]:
    found: dict[str, Any] = {"score": one.score, "index": one.index, "meta_info": one.meta}
    if body.return_documents:
        found["document"] = body.texts()[one.index]
    return found


def _result(one: _Ranked, body: RerankBody) -> dict[str, Any]:
    found: dict[str, Any] = {"index": one.index, "relevance_score": one.relevance}
    if body.return_documents:
        found["document"] = {"text": body.texts()[one.index]}
    return found
