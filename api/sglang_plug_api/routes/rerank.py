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
from sglang_plug_api.choices import complete_all
from sglang_plug_api.errors import ApiError, json_response
from sglang_plug_api.job import Job, Piece, new_id
from sglang_plug_api.judge import judge_jobs, judgement
from sglang_plug_api.pooling import encode_pairs, meta_info, pool_all, pooling_jobs, pooling_task, prompt_usage, sigmoid
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
    """As the model gives it: any number from a cross-encoder, a probability from a judge."""
    relevance: float
    """Between 0 and 1."""
    meta: dict[str, Any]


async def _answer(engine: TextEngine, body: RerankBody, form: str) -> Response:
    started = time.time()
    engine.check_model(body.model)
    jobs, pieces, is_judge = await _read(engine, body)
    ranked = []
    for index, (job, piece) in enumerate(zip(jobs, pieces, strict=True)):
        score = judgement(piece) if is_judge else _single(piece)
        relevance = score if is_judge else sigmoid(score)
        ranked.append(_Ranked(index, score, relevance, meta_info(engine, job, piece, started)))
    ranked.sort(key=lambda one: -one.score)
    ranked = ranked[: body.top_n]
    if form == "list":
        return json_response([_item(one, body) for one in ranked])
    return json_response(
        {
            "id": f"rerank-{jobs[0].request}",
            "model": body.model or engine.model_name,
            "usage": prompt_usage([job.tokens for job in jobs]),
            "results": [_result(one, body) for one in ranked],
        }
    )


async def _read(engine: TextEngine, body: RerankBody) -> tuple[list[Job], list[Piece], bool]:
    """A job for each document and its outcome; and whether a chat model was asked."""
    id = body.rid or new_id()
    if "generate" in engine.info["tasks"]:
        jobs = await judge_jobs(engine, body, id)
        return jobs, await complete_all(engine, jobs), True
    task = pooling_task(engine, "rerank")
    refuse(body, "instruct", remedy="a cross-encoder is not asked in words")
    prompts = await encode_pairs(engine, body.query, body.texts(), "documents")
    jobs = pooling_jobs(prompts, task, id, body.priority)
    return jobs, await pool_all(engine, jobs), False


def _single(piece: Piece) -> float:
    if len(piece.values) != 1:
        count = len(piece.values)
        raise ApiError(f"the model gives {count} scores for a text, and documents are sorted by one; use /classify")
    return piece.values[0]


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
