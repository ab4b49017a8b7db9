"""How well two texts fit: a cross-encoder reads them together, a chat model is asked, and vectors are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .choices import complete_all
from .errors import ApiError
from .job import Job, Piece
from .judge import judge_jobs, judgement
from .pooling import Pair, encode_all, encode_pairs, pool_all, pooling_jobs, pooling_task, sigmoid
from .text import TextEngine


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found of one pair."""

    job: Job
    piece: Piece
    score: float
    """As the model gives it: any number from a cross-encoder, a probability from a chat model."""
    relevance: float
    """Between 0 and 1."""


async def judge_pairs(
    engine: TextEngine,
    pairs: Sequence[Pair],
    param: str,
    *,
    id: str,
    priority: int = 0,
    adapter: str | None = None,
    instruct: str | None = None,
) -> list[Judged]:
    """How well each query is answered by its document, by a cross-encoder or a chat model.

    ``param`` is what the request ``id`` calls its documents; only chat models are told ``instruct``. Raises
    ``ApiError``.
    """
    if "generate" in engine.info["tasks"]:
        jobs = await judge_jobs(engine, pairs, param, id=id, priority=priority, adapter=adapter, instruct=instruct)
        pieces = await complete_all(engine, jobs)
        found = [(judgement(piece), judgement(piece)) for piece in pieces]
    else:
        task = pooling_task(engine, "rerank")
        jobs = pooling_jobs(await encode_pairs(engine, pairs, param), task, id, priority, adapter)
        pieces = await pool_all(engine, jobs)
        found = [(_single(piece), sigmoid(_single(piece))) for piece in pieces]
    return [Judged(job, piece, *one) for job, piece, one in zip(jobs, pieces, found, strict=True)]


async def compare(
    engine: TextEngine,
    first: Sequence[str],
    second: Sequence[str],
    params: Pair,
    *,
    id: str,
    priority: int = 0,
    adapter: str | None = None,
) -> tuple[list[float], int]:
    """The cosine between the vectors of two texts, and how many tokens all of them have.

    ``first`` has one text for all of ``second``, or as many; ``params`` is what the request ``id`` calls them. Raises
    ``ApiError``.
    """
    task = pooling_task(engine, "embed")
    prompts = [*await encode_all(engine, first, params[0]), *await encode_all(engine, second, params[1])]
    engine.check_sequences(len(prompts))
    vectors = [piece.values for piece in await pool_all(engine, pooling_jobs(prompts, task, id, priority, adapter))]
    left, right = vectors[: len(first)], vectors[len(first) :]
    return [_cosine(left[index % len(left)], one) for index, one in enumerate(right)], sum(map(len, prompts))


def _cosine(first: Sequence[float], second: Sequence[float]) -> float:
    length = math.hypot(*first) * math.hypot(*second)
    return math.fsum(a * b for a, b in zip(first, second, strict=True)) / length if length else 0.0


def _single(piece: Piece) -> float:
    if len(piece.values) != 1:
        count = len(piece.values)
        raise ApiError(f"the model gives {count} scores for a text, and pairs have one each; use /classify")
    return piece.values[0]
