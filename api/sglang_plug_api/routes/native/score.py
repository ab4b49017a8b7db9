"""``POST /v1/score``: probabilities of chosen tokens as the next one, or similarity scores of pairs of texts."""

from __future__ import annotations

import math
import time

from fastapi import APIRouter, Request, Response

from sglang_plug import LogprobOptions
from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import response_unless_disconnected
from sglang_plug_api.pooling.generative_scoring import ScoringUnsupported
from sglang_plug_api.pooling.pair_scoring import cosine_scores, score_pairs
from sglang_plug_api.pooling.pooling import (
    ONE_TOKEN,
    PoolingRequest,
    check_count,
    encode_all,
    prompt_usage,
    softmax,
)
from sglang_plug_api.protocol.base import refuse
from sglang_plug_api.protocol.score import QueryWithItems, ScoreBody
from sglang_plug_api.service.gather import gather
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.text_engine import TextEngine
from sglang_plug_api.text.truncation import Truncation

NO_TEXTS = (
    "this model does not compare text_1 and text_2; for the probabilities of next tokens send query, items and "
    "label_token_ids"
)
MAX_QUERY_COPIES = 1 << 26
"""Largest number of characters, or tokens, of a query in the prompts of all items together."""
NO_LABELS = "this model predicts no next token, so it has no scores for label_token_ids; send text_1 and text_2"


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["native"])

    @takes(router, "/v1/score", ScoreBody, summary="Probabilities of labels after a query, or the similarity of texts")
    async def score(request: Request) -> Response:
        body = await read_body(request, ScoreBody)
        engine.check_model(body.model)
        return await response_unless_disconnected(request, (_pairs if body.has_texts else _labels)(engine, body))

    takes(router, "/score", ScoreBody, summary="As /v1/score")(score)
    return router


async def _pairs(engine: TextEngine, body: ScoreBody) -> Response:
    """Score pairs of texts: between 0 and 1 by a cross-encoder or chat model, or the cosine of their embeddings."""
    first, second = body.texts()
    request = PoolingRequest.of(engine, body)
    if "embed" in engine.info["tasks"]:
        scores, prompt = await cosine_scores(engine, request, first, second, ("text_1", "text_2"))
    else:
        pairs = [(first[index % len(first)], text) for index, text in enumerate(second)]
        try:
            results = await score_pairs(engine, request, pairs, "text_2")
        except ScoringUnsupported:
            raise ApiError(NO_TEXTS) from None
        scores, prompt = [pair.relevance for pair in results], sum(len(pair.job.tokens) for pair in results)
    return json_response(
        {
            "id": f"score-{request.id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or engine.model_name,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": {"prompt_tokens": prompt, "completion_tokens": 0, "total_tokens": prompt},
        },
        headers=id_header(request.id),
    )


async def _labels(engine: TextEngine, body: ScoreBody) -> Response:
    jobs = await _jobs(engine, body)
    outputs = await gather(map(engine.complete, jobs))
    scores = [_scores(output, body) for output in outputs]
    usage = prompt_usage([job.tokens for job in jobs])
    model = body.model or engine.model_name
    answer = {"scores": scores, "object": "scoring", "model": model, "usage": usage}
    return json_response(answer, headers=id_header(jobs[0].request))


async def _jobs(engine: TextEngine, body: ScoreBody) -> list[Job]:
    if "generate" not in engine.info["tasks"]:
        raise ApiError(NO_LABELS)
    refuse(body, "return_token_logprobs", remedy="use token_ids_logprob on /generate")
    size = engine.info["vocab_size"]
    labels = tuple(body.label_token_ids or ())
    beyond = next((label for label in labels if label >= size), None)
    if beyond is not None:
        raise ApiError(
            f"label token id {beyond} is not in the vocabulary of {size} tokens",
            param="label_token_ids",
        )
    request = PoolingRequest.of(engine, body)
    truncation = request.truncation(engine, room=1)
    prompts = await encode_all(engine, _unencoded(engine, body, truncation), "items", truncation=truncation)
    jobs = request.jobs(prompts, sampling=ONE_TOKEN, logprobs=LogprobOptions(ids=labels))
    return engine.expand(jobs)


def _unencoded(engine: TextEngine, body: ScoreBody, truncation: Truncation | None) -> QueryWithItems:
    """Return the prompts before they are encoded. Raises ``ApiError`` if they are too many, or long together."""
    prompts = body.prompts()
    check_count(engine, len(prompts), "items")
    unit = "characters" if isinstance(prompts.query, str) else "tokens"
    if truncation is not None and unit == "tokens":
        prompts = prompts.cut(truncation.cut)
    length, total = len(prompts.query), len(prompts.query) * len(prompts)
    if total > MAX_QUERY_COPIES:
        raise ApiError(
            f"query has {length} {unit} for each of {len(prompts)} items, {total} together; the maximum is "
            f"{MAX_QUERY_COPIES}: send fewer items in one request",
            param="query",
        )
    return prompts


def _scores(output: JobOutput, body: ScoreBody) -> list[float]:
    """Return a score for each label. Raises ``ApiError`` if the request was aborted before it had any."""
    if not output.logprobs:
        raise ApiError("the request was aborted")
    logprobs = [logprob for _, logprob in output.logprobs[0].ids]
    if not body.apply_softmax:
        return [math.exp(logprob) for logprob in logprobs]
    maximum = max(logprobs)
    if body.temperature is None or maximum == -math.inf:
        return softmax(logprobs)
    return softmax([(logprob - maximum) / body.temperature for logprob in logprobs])
