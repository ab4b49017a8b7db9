"""Scores of pairs of texts: by a cross-encoder, by a chat model, or as the cosine of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.service.gather import gather
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.text_engine import TextEngine

from .generative_scoring import read_score, scoring_jobs
from .pooling import (
    Pair,
    PoolingRequest,
    encode_all,
    encode_pairs,
    pool_all,
    pooling_task,
    sigmoid,
)


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
