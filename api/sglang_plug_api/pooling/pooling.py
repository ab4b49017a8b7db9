"""Vectors and scores of texts: the part that the routes of pooling tasks share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from sglang_plug import SamplingParams
from sglang_plug.contracts.request import Task
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.protocol.embeddings import InputBody, TruncatedBody
from sglang_plug_api.service.callers import ANONYMOUS, Caller, current_caller
from sglang_plug_api.service.gather import gather
from sglang_plug_api.service.request_context import RequestContext, current_request_context
from sglang_plug_api.service.sequence_limits import SequenceLimits
from sglang_plug_api.text.job import PROMPT_ONLY, Job, JobOutput, new_id
from sglang_plug_api.text.prompt_encoder import MAX_INLINE_CHARACTERS
from sglang_plug_api.text.sampling import Sampling
from sglang_plug_api.text.text_engine import TextEngine
from sglang_plug_api.text.truncation import Truncation, truncation_of

NOT_POOLING = (
    "This model does not appear to be an embedding model by default. "
    "Please add `--is-embedding` when launching the server or try another model."
)

Prompts = Sequence[str] | Sequence[list[int]]
Pair = tuple[str, str]
ONE_TOKEN = Sampling(params=SamplingParams(max_new_tokens=1, temperature=0.0))
"""Parameters of scores that are probabilities of the next token."""


def pooling_task(engine: TextEngine, *candidates: Task) -> Task:
    """Return the first of ``candidates`` that is served. Raises ``ApiError`` if none is."""
    tasks: Sequence[Task] = engine.info["tasks"]
    served = next((task for task in candidates if task in tasks), None)
    if served is not None:
        return served
    if "generate" in tasks and "embed" in candidates:
        raise ApiError(NOT_POOLING)
    raise ApiError(f"this model does not support the task {candidates[0]}; its tasks: {', '.join(tasks)}")


async def encode_all(
    engine: TextEngine, prompts: Prompts, param: str, *, truncation: Truncation | None = None, special: bool = True
) -> list[list[int]]:
    """Return the tokens of each prompt. Raises ``ApiError`` if there are too many, or if one does not fit the model.

    Args:
        engine: its tokenizer is used.
        prompts: texts, or tokens as they are.
        param: the field of the prompts in the request.
        truncation: how prompts that are too long are cut; ``None``: they are refused.
        special: add the special tokens that the model expects around a text.
    """
    check_count(engine, len(prompts), param)

    def encoded_one(prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            tokens = [int(token) for token in prompt]
            return tokens if truncation is None else truncation.cut(tokens)
        engine.encoder.check_text(prompt)
        tokens = engine.tokenizer.encode(prompt, special=special)
        if truncation is None or len(tokens) <= truncation.max_tokens:
            return tokens
        return truncation.cut_between(tokens, engine.tokenizer.encode(prompt, special=False))

    def work() -> list[list[int]]:
        return fitting(engine, map(encoded_one, prompts), len(prompts), param)

    return await _encode_inline_or_in_thread(work, prompts)


async def encode_pairs(
    engine: TextEngine, pairs: Sequence[Pair], param: str, truncation: Truncation | None = None
) -> list[list[int]]:
    """Return the tokens of pairs that are read together; ``truncation`` cuts the second text of each.

    Raises ``ApiError`` as ``encode_all`` does.
    """
    check_count(engine, len(pairs), param)
    encode = engine.tokenizer.encode_pair
    for text in chain.from_iterable(pairs):
        engine.encoder.check_text(text)

    def length(first: str, second: str) -> int:
        return len(encode(first, second))

    def work() -> list[list[int]]:
        encoded = (encode(*fitting_pair(engine, pair, length, truncation)) for pair in pairs)
        return fitting(engine, encoded, len(pairs), param)

    return await _encode_inline_or_in_thread(work, chain.from_iterable(pairs))


def fitting_pair(
    engine: TextEngine, pair: Pair, length: Callable[[str, str], int], truncation: Truncation | None
) -> Pair:
    """Return ``pair`` with its second text cut until its ``length`` in tokens fits, or until nothing of it is left.

    Tokens may merge differently where a text was cut, so a text may have to be cut again.
    """
    if truncation is None:
        return pair
    first, second = pair
    while second and (beyond := length(first, second) - truncation.max_tokens) > 0:
        remaining = max(0, len(engine.tokenizer.encode(second, special=False)) - beyond)
        second = Truncation(remaining, truncation.side).cut_text(engine.tokenizer, second) if remaining else ""
    return first, second


async def _encode_inline_or_in_thread(
    work: Callable[[], list[list[int]]], prompts: Iterable[str | list[int]]
) -> list[list[int]]:
    """Run ``work``; in a thread if it reads long ``prompts``, so that other requests are served meanwhile."""
    is_long = any(length > MAX_INLINE_CHARACTERS for length in accumulate(map(len, prompts)))
    return await asyncio.to_thread(work) if is_long else work()


def check_count(engine: TextEngine, count: int, param: str) -> None:
    """Raise ``ApiError`` for a request with too many prompts."""
    limit = engine.config.max_sequences_per_request
    if count > limit:
        raise ApiError(f"{param} has {count} entries; the maximum is {limit}", param=param)
    SequenceLimits.of(engine.config, engine.info).check_queue(count, len(engine.client.replicas), param)


def fitting(engine: TextEngine, prompts: Iterable[list[int]], count: int, param: str) -> list[list[int]]:
    """Return the ``count`` prompts. Raises ``ApiError`` at the first that is too long, before the next is made."""
    limit, fit = engine.info["context_length"], list[list[int]]()
    for index, tokens in enumerate(prompts):
        if len(tokens) > limit:
            where = f"{param}[{index}]: " if count > 1 else ""
            raise ApiError(
                f"{where}The input ({len(tokens)} tokens) is longer than the model's context length ({limit} tokens).",
                param=param,
                code="context_length_exceeded",
            )
        fit.append(tokens)
    return fit


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """One request of a pooling task, and what all of its jobs share."""

    body: TruncatedBody
    id: str
    adapter: str | None
    caller: Caller
    context: RequestContext

    @classmethod
    def of(cls, engine: TextEngine, body: TruncatedBody) -> PoolingRequest:
        """Return the request with this body. Raises ``ApiError`` if its model is not served."""
        engine.check_model(body.model)
        return cls(
            body=body,
            id=body.rid or new_id(),
            adapter=engine.adapters.resolve(body.model),
            caller=current_caller(),
            context=current_request_context(),
        )

    def truncation(self, engine: TextEngine, *, room: int = 0) -> Truncation | None:
        """Return how the texts are cut: by default to their first tokens, with ``room`` for other tokens."""
        longest = engine.info["context_length"] - room
        body = self.body
        return truncation_of(body.truncate_prompt_tokens, body.truncation_side, longest=longest, default="right")

    def jobs(self, prompts: Sequence[Sequence[int]], **fields: Any) -> list[Job]:
        """Return a job for each prompt, in order; ``fields`` are further ones of each."""
        return [
            Job(
                id=f"{self.id}-{index}",
                request=self.id,
                tokens=tokens,
                priority=self.body.priority or 0,
                salt=self.body.salt,
                adapter=self.adapter,
                caller=self.caller,
                context=self.context,
                **fields,
            )
            for index, tokens in enumerate(prompts)
        ]


async def pool_inputs(
    engine: TextEngine, body: InputBody, task: Task
) -> tuple[str, list[list[int]], list[Sequence[float]]]:
    """Return the request's id, its texts as tokens, and the vector or scores of each. Raises ``ApiError``."""
    request = PoolingRequest.of(engine, body)
    task = pooling_task(engine, task)
    truncation = request.truncation(engine)
    prompts = await encode_all(engine, body.inputs(), "input", truncation=truncation, special=body.add_special_tokens)
    outputs = await pool_all(engine, request.jobs(prompts, task=task))
    return request.id, prompts, [output.values for output in outputs]


async def pool_all(engine: TextEngine, jobs: Sequence[Job]) -> list[JobOutput]:
    """Return the vectors or scores of every job. Raises ``ApiError`` if the request was aborted."""
    outputs = await gather(map(engine.complete, jobs))
    if any(not output.values for output in outputs):
        raise ApiError("the request was aborted")
    return outputs


def truncate_vector(engine: TextEngine, values: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """Return the first ``dimensions`` of a vector (Matryoshka), normalized again if whole vectors are.

    Raises ``ApiError`` if the vector has fewer.
    """
    if dimensions is None or dimensions == len(values):
        return values
    if dimensions > len(values):
        raise ApiError(f"dimensions is {dimensions}, but the model's vectors have {len(values)}", param="dimensions")
    cut = values[:dimensions]
    if not engine.info["normalized"]:
        return cut
    length = math.sqrt(sum(value * value for value in cut))
    return [value / length for value in cut] if length else cut


def sigmoid(value: float) -> float:
    """Return ``1 / (1 + exp(-value))``, for any finite ``value``."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))


def softmax(values: Sequence[float]) -> list[float]:
    """Return probabilities from logarithms, equal ones if all are minus infinity."""
    highest = max(values)
    if highest == -math.inf:
        return [1 / len(values)] * len(values)
    shares = [math.exp(value - highest) for value in values]
    total = sum(shares)
    return [share / total for share in shares]


def meta_info(engine: TextEngine, job: Job, output: JobOutput, started: float) -> dict[str, Any]:
    """Return the ``meta_info`` of a prompt; ``started`` is ``time.time()`` at the request's arrival."""
    return {
        "id": job.id,
        "finish_reason": {"type": "stop"},
        "prompt_tokens": len(job.tokens),
        "cached_tokens": output.cached_tokens,
        "weight_version": engine.server.state.weight_version,
        "e2e_latency": time.time() - started,
    }


def prompt_usage(prompts: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return ``usage`` of a request that generates nothing."""
    tokens = sum(map(len, prompts))
    return {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}


async def probe_model(engine: TextEngine, tokens: Sequence[int], *, new_tokens: int, priority: int = 0) -> None:
    """Run one small request of the first task that the model can do. It counts for no caller."""
    task: Task = engine.info["tasks"][0]
    sampling = PROMPT_ONLY
    if task == "generate":
        sampling = engine.defaults.complete({"max_new_tokens": new_tokens, "temperature": 0.0}, len(tokens), new_tokens)
    job = Job(
        tokens=tokens,
        task=task,
        sampling=sampling,
        priority=priority,
        caller=ANONYMOUS,
        context=RequestContext(),
    )
    await engine.complete(job)
