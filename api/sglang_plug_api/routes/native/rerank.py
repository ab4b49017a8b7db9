"""``POST /v1/rerank``: documents sorted by how well they answer a query.

Cross-encoders read query and document together. A chat model is asked whether the document answers the query, in the
words that Qwen3-Reranker was trained on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import response_unless_disconnected
from sglang_plug_api.pooling.pair_scoring import score_pairs
from sglang_plug_api.pooling.pooling import PoolingRequest, meta_info, prompt_usage
from sglang_plug_api.protocol.base import refuse
from sglang_plug_api.protocol.embeddings import RerankBody
from sglang_plug_api.text.text_engine import TextEngine
from sglang_plug_api.text.truncation import Truncation

FORMATS = ("list", "jina", "tei")
SDK_HEADER, COHERE = "x-fern-sdk-name", "cohere"
"""Header by which Cohere's clients name themselves. ``cohere.Client`` posts to ``/v1/rerank`` and reads no list."""


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["native"])

    @takes(router, "/v1/rerank", RerankBody, summary="Sort documents by how well they answer a query")
    async def rerank(request: Request) -> Response:
        body = await read_body(request, RerankBody)
        form = request.query_params.get("format") or _default_form(request, body)
        if form not in FORMATS:
            raise ApiError(f"format {form[:40]!r} is unknown; known: {', '.join(FORMATS)}", param="format")
        return await response_unless_disconnected(request, _rerank(engine, body, form))

    takes(router, "/rerank", RerankBody, summary="As /v1/rerank")(rerank)

    @takes(router, "/v2/rerank", RerankBody, summary="As /v1/rerank, in the form of Cohere's and Jina's APIs")
    async def rerank_v2(request: Request) -> Response:
        return await response_unless_disconnected(
            request, _rerank(engine, await read_body(request, RerankBody), "jina")
        )

    return router


def _default_form(request: Request, body: RerankBody) -> str:
    """Return the form that the client reads. Clients of vLLM are known by a field that SGLang's body does not have."""
    if body.texts is not None:
        return "tei"
    of_vllm = body.truncate_prompt_tokens is not None
    return "jina" if of_vllm or request.headers.get(SDK_HEADER) == COHERE else "list"


@dataclass(frozen=True, slots=True)
class _RankedDocument:
    """A document, its position in the request, and its scores."""

    index: int
    text: str
    score: float
    relevance: float
    meta: dict[str, Any]


async def _rerank(engine: TextEngine, body: RerankBody, form: str) -> Response:
    started = time.time()
    engine.check_model(body.model)
    if "generate" not in engine.info["tasks"]:
        refuse(body, "instruct", remedy="a cross-encoder is not asked in words")
    scores = await score_pairs(
        engine,
        PoolingRequest.of(engine, body),
        [(body.query, text) for text in await _texts(engine, body)],
        "documents",
        instruct=body.instruct,
    )
    ranked = [
        _RankedDocument(index, text, pair.score, pair.relevance, meta_info(engine, pair.job, pair.output, started))
        for index, (text, pair) in enumerate(zip(body.document_texts(), scores, strict=True))
    ]
    ranked.sort(key=lambda document: -document.score)
    ranked, id = ranked[: body.top_n], scores[0].job.request
    headers = id_header(id)
    if form == "list":
        return json_response([_item(document, body) for document in ranked], headers=headers)
    if form == "tei":
        return json_response([_text_item(document, body) for document in ranked], headers=headers)
    return json_response(
        {
            "id": f"rerank-{id}",
            "model": body.model or engine.model_name,
            "usage": prompt_usage([pair.job.tokens for pair in scores]),
            "results": [_result(document, body) for document in ranked],
        },
        headers=headers,
    )


async def _texts(engine: TextEngine, body: RerankBody) -> list[str]:
    """Return the documents as text, cut to ``max_tokens_per_doc``. Raises ``ApiError`` if one is too long to be cut."""
    texts = body.document_texts()
    if not body.max_tokens_per_doc:
        return texts
    cut, tokenizer = Truncation(body.max_tokens_per_doc, "right"), engine.tokenizer
    for text in texts:
        engine.encoder.check_text(text)
    return await asyncio.to_thread(lambda: [cut.cut_text(tokenizer, text) for text in texts])


def _item(ranked: _RankedDocument, body: RerankBody) -> dict[str, Any]:
    item: dict[str, Any] = {"score": ranked.score, "index": ranked.index, "meta_info": ranked.meta}
    if body.return_documents:
        item["document"] = ranked.text
    return item


def _text_item(ranked: _RankedDocument, body: RerankBody) -> dict[str, Any]:
    item: dict[str, Any] = {"index": ranked.index, "score": ranked.score if body.raw_scores else ranked.relevance}
    if body.return_text:
        item["text"] = ranked.text
    return item


def _result(ranked: _RankedDocument, body: RerankBody) -> dict[str, Any]:
    result: dict[str, Any] = {"index": ranked.index, "relevance_score": ranked.relevance}
    if body.return_documents:
        result["document"] = {"text": ranked.text}
    return result
