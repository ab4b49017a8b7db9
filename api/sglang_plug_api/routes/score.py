"""``POST /v1/score``: the probabilities of chosen tokens as the next one."""

from __future__ import annotations

import math

from fastapi import APIRouter, Request, Response

from sglang_plug import LogprobOptions, SamplingParams
from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.choices import complete_all
from sglang_plug_api.errors import ApiError, json_response
from sglang_plug_api.job import Job, Piece, new_id
from sglang_plug_api.protocol.base import refuse
from sglang_plug_api.protocol.score import ScoreBody
from sglang_plug_api.sampling import Sampling
from sglang_plug_api.streaming import unless_disconnected
from sglang_plug_api.text import TextEngine

ONE_TOKEN = Sampling(params=SamplingParams(max_new_tokens=1, temperature=0.0))


def build(engine: TextEngine) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["native"])

    @takes(router, "/v1/score", ScoreBody, summary="Probabilities of labels after a query with each of several items")
    async def score(request: Request) -> Response:
        body = await read_body(request, ScoreBody)
        return await unless_disconnected(request, _answer(engine, body))

    return router


async def _answer(engine: TextEngine, body: ScoreBody) -> Response:
    jobs = await _jobs(engine, body)
    pieces = await complete_all(engine, jobs)
    scores = [_scores(piece, body.apply_softmax) for piece in pieces]
    prompt = sum(len(job.tokens) for job in jobs)
    usage = {"prompt_tokens": prompt, "completion_tokens": 0, "total_tokens": prompt}
    model = body.model or engine.model_name
    return json_response({"scores": scores, "object": "scoring", "model": model, "usage": usage})


async def _jobs(engine: TextEngine, body: ScoreBody) -> list[Job]:
    engine.check_model(body.model)
    refuse(body, "return_token_logprobs", remedy="use token_ids_logprob on /generate")
    size = engine.info["vocab_size"]
    beyond = next((label for label in body.label_token_ids if label >= size), None)
    if beyond is not None:
        raise ApiError(
            f"label token id {beyond} is not in the vocabulary of {size} tokens",
            param="label_token_ids",
        )
    request = body.rid or new_id()
    prompts = [await engine.encode(one) if isinstance(one, str) else one for one in body.prompts()]
    return engine.expand(
        [
            Job(
                id=f"{request}-{index}",
                request=request,
                tokens=tokens,
                sampling=ONE_TOKEN,
                logprobs=LogprobOptions(ids=tuple(body.label_token_ids)),
                priority=body.priority or 0,
            )
            for index, tokens in enumerate(prompts)
        ]
    )


def _scores(piece: Piece, among_labels: bool) -> list[float]:
    """One for each label. Raises ``ApiError`` if the request was aborted before it had any."""
    if not piece.logprobs:
        raise ApiError("the request was aborted")
    logprobs = [logprob for _, logprob in piece.logprobs[0].ids]
    highest = max(logprobs)
    if not among_labels:
        return [math.exp(one) for one in logprobs]
    if highest == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    shares = [math.exp(one - highest) for one in logprobs]
    total = sum(shares)
    return [one / total for one in shares]
