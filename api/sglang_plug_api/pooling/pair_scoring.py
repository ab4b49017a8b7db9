"""Scores of pairs of texts: by a cross-encoder, by a chat model, or as the cosine of embeddings."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.protocol.embeddings import TruncatedBody
from sglang_plug_api.service.gather import gather
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.text_engine import TextEngine

from .generative_scoring import read_score, scoring_jobs
from .pooling import (
    Pair,
    PoolingRequest,
    encode_all,
    encode_pairs,
    meta_info,
    pool_all,
    pooling_task,
    sigmoid,
)

QUERY_AND_DOCUMENT = ("query", "document")
"""The texts of a pair."""


@dataclass(frozen=True, slots=True)
class PairScore:
    """The score of one pair."""

    job: Job
    output: JobOutput
    score: float
    """The model's score: any number from a cross-encoder, a probability from a chat model."""
    relevance: float
    """Relevance between 0 and 1."""


async def score_pairs(
    engine: TextEngine,
    request: PoolingRequest,
    pairs: Sequence[Pair],
    param: str,
    *,
    instruct: str | None = None,
) -> list[PairScore]:
    """Score how well each document answers its query, by a cross-encoder or a chat model.

    ``param`` is the field of the documents in the request; only chat models get ``instruct``. Raises ``ApiError``.
    """
    generates = "generate" in engine.info["tasks"]
    truncation = request.truncation(engine, room=int(generates))
    if generates:
        jobs = await scoring_jobs(engine, request, pairs, param, instruct=instruct, truncation=truncation)
        outputs = await gather(map(engine.complete, jobs))
        scores = [(read_score(output), read_score(output)) for output in outputs]
    else:
        task = pooling_task(engine, "rerank")
        prompts = await encode_pairs(engine, pairs, param, truncation)
        jobs = request.jobs(prompts, task=task)
        outputs = await pool_all(engine, jobs)
        scores = [(_single(output), sigmoid(_single(output))) for output in outputs]
    return [PairScore(job, output, *score) for job, output, score in zip(jobs, outputs, scores, strict=True)]


async def pair_answers(engine: TextEngine, pairs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return ``{embedding, meta_info}`` of each query with its document; the embedding has one number, the score.

    Raises ``ApiError``.
    """
    started = time.time()
    checked = [_checked_pair(pair, index) for index, pair in enumerate(pairs)]
    if not checked:
        raise ApiError("there is no pair of texts", param="prompt")
    scores = await score_pairs(engine, PoolingRequest.of(engine, TruncatedBody()), checked, "prompt")
    return [
        {"embedding": [pair.score], "meta_info": meta_info(engine, pair.job, pair.output, started)} for pair in scores
    ]


def _checked_pair(pair: Sequence[str], index: int) -> Pair:
    if isinstance(pair, str) or len(pair) != len(QUERY_AND_DOCUMENT) or not all(isinstance(text, str) for text in pair):
        raise ApiError(f"prompt[{index}] must be a pair of texts, the query and the document", param="prompt")
    for name, text in zip(QUERY_AND_DOCUMENT, pair, strict=True):
        if not text.strip():
            raise ApiError(f"prompt[{index}]: the {name} is empty", param="prompt")
    return pair[0], pair[1]


async def cosine_scores(
    engine: TextEngine,
    request: PoolingRequest,
    first: Sequence[str],
    second: Sequence[str],
    params: Pair,
) -> tuple[list[float], int]:
    """Return the cosine between the embeddings of each pair of texts, and the number of tokens in all texts.

    ``first`` has one text for all of ``second``, or as many as ``second``; ``params`` are the fields of the
    texts in the request. Raises ``ApiError``.
    """
    task = pooling_task(engine, "embed")
    truncation = request.truncation(engine)
    prompts = [
        *await encode_all(engine, first, params[0], truncation=truncation),
        *await encode_all(engine, second, params[1], truncation=truncation),
    ]
    engine.check_sequences(len(prompts))
    vectors = [output.values for output in await pool_all(engine, request.jobs(prompts, task=task))]
    left, right = vectors[: len(first)], vectors[len(first) :]
    cosines = [_cosine(left[index % len(left)], vector) for index, vector in enumerate(right)]
    return cosines, sum(map(len, prompts))


def _cosine(first: Sequence[float], second: Sequence[float]) -> float:
    length = math.hypot(*first) * math.hypot(*second)
    return math.fsum(a * b for a, b in zip(first, second, strict=True)) / length if length else 0.0


def _single(output: JobOutput) -> float:
    if len(output.values) != 1:
        count = len(output.values)
        raise ApiError(f"the model gives {count} scores for a text, and pairs have one each; use /classify")
    return output.values[0]
