"""Running the outputs of one OpenAI request: all at once, or as a stream of pieces with their choice's index."""

from __future__ import annotations

import asyncio
import contextlib
import string
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import quote

from sglang_plug import LogprobOptions

from .constraints import field_of, of_generation
from .job import MAX_ID_CHARACTERS, Job, Piece, new_id
from .protocol.openai import GenerationBody
from .sampling import Sampling
from .streaming import merged
from .text import TextEngine


def make_jobs(
    engine: TextEngine,
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    logprobs: LogprobOptions | None,
    id: str,
) -> list[Job]:
    """A job for each prompt and output. Raises ``ApiError``."""
    constraint = of_generation(body)
    adapter = engine.adapters.chosen(body.model, body.lora_path)
    single = len(prompts) == 1
    return engine.expand(
        [
            Job(
                id=id if single else f"{id}-{index}",
                request=id,
                tokens=tokens,
                sampling=sampling,
                logprobs=logprobs,
                constraint=constraint,
                constraint_field=field_of(constraint),
                priority=body.priority or 0,
                salt=body.salt,
                adapter=adapter,
            )
            for index, (tokens, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
    )


def request_id(body: GenerationBody) -> str:
    """The caller's id, or a new one."""
    return (body.rid or body.request_id or new_id())[:MAX_ID_CHARACTERS]


def id_header(id: str) -> dict[str, str]:
    """The header that tells the id; what a header cannot hold, line ends above all, is percent-encoded."""
    return {"x-request-id": quote(id, safe=string.punctuation, errors="replace")}


async def complete_all(engine: TextEngine, jobs: Sequence[Job]) -> list[Piece]:
    """Every job's whole output. If one fails the others are aborted."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.complete(job)) for job in jobs]
    except ExceptionGroup as error:
        raise error.exceptions[0] from None
    return [task.result() for task in tasks]


async def stream_all(engine: TextEngine, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Pieces of all jobs as they come."""
    async with contextlib.aclosing(merged([engine.stream(job) for job in jobs])) as pieces:
        async for item in pieces:
            yield item


class Usage:
    """Token counts of one request, kept up to date piece by piece."""

    def __init__(self, engine: TextEngine, prompts: Sequence[Sequence[int]], outputs: int) -> None:
        self._report_cached = engine.config.enable_cache_report
        self._prompt = sum(map(len, prompts))
        self._completion = [0] * outputs
        self._cached = [0] * outputs
        self._outputs_per_prompt = outputs // len(prompts)
        self.reasoning: int | None = None
        """Output tokens that were reasoning, once they have been counted."""

    def add(self, index: int, piece: Piece) -> None:
        """Count what ``piece`` brought."""
        self._completion[index] = piece.completion_tokens
        self._cached[index] = piece.cached_tokens

    def report(self) -> dict[str, Any]:
        """``usage`` in OpenAI's shape. A prompt counts once, however many outputs it has."""
        completion = sum(self._completion)
        cached = sum(self._cached[:: self._outputs_per_prompt])
        found: dict[str, Any] = {
            "prompt_tokens": self._prompt,
            "completion_tokens": completion,
            "total_tokens": self._prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached} if self._report_cached else None,
        }
        if self.reasoning is not None:
            found["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return found


class Envelope:
    """The keys that every answer and every chunk of one request share."""

    def __init__(self, engine: TextEngine, body: GenerationBody, id: str, kind: str) -> None:
        self.model = body.model or engine.model_name
        self._shared = {"id": id, "object": kind, "created": int(time.time()), "model": self.model}

    def __call__(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        """An answer with these choices."""
        found: dict[str, Any] = {**self._shared, "choices": choices}
        if usage is not None:
            found["usage"] = usage
        return found


def finish_reason(piece: Piece) -> str | None:
    """OpenAI's word for why an output ended."""
    return None if piece.ending is None else piece.ending.reason


def matched_stop(piece: Piece) -> int | str | None:
    """The stop token or string that ended an output."""
    return None if piece.ending is None else piece.ending.matched
