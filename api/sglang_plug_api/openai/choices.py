"""The part that chat and completions share: jobs, usage, and the fields around their choices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sglang_plug import LogprobOptions
from sglang_plug_api.protocol.base import one_each, salts_of_prompts
from sglang_plug_api.protocol.openai import GenerationBody
from sglang_plug_api.text.job import MAX_ID_CHARACTERS, Job, JobOutput, new_id
from sglang_plug_api.text.sampling import Sampling
from sglang_plug_api.text.text_engine import TextEngine
from sglang_plug_api.text.truncation import Truncation, truncation_of


def make_jobs(
    engine: TextEngine,
    body: GenerationBody,
    prompts: Sequence[Job],
    samplings: Sequence[Sampling],
    logprobs: LogprobOptions | None,
    id: str,
) -> list[Job]:
    """Return a job for each output of each of ``prompts``, which have tokens and constraints. Raises ``ApiError``."""
    count = len(prompts)
    adapters = [engine.adapters.resolve(body.model, name) for name in one_each(body, "lora_path", count)]
    salts = salts_of_prompts(body, count)
    if isinstance(body.rid, list):
        ids = [id, *((name or new_id())[:MAX_ID_CHARACTERS] for name in one_each(body, "rid", count)[1:])]
        requests = ids
    else:
        ids, requests = [id] if count == 1 else [f"{id}-{index}" for index in range(count)], [id] * count
    return engine.expand(
        [
            replace(
                prompt,
                id=ids[index],
                request=requests[index],
                sampling=sampling,
                logprobs=logprobs,
                priority=body.priority or 0,
                salt=salts[index],
                adapter=adapters[index],
            )
            for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
    )


def generation_truncation(engine: TextEngine, body: GenerationBody) -> Truncation | None:
    """Return how the prompts of a request are cut, ``None`` unless it asks for it: by default to its last tokens.

    There is room for the output then.
    """
    if body.truncate_prompt_tokens is None:
        return None
    max_new_tokens = body.sampling().get("max_new_tokens")
    longest = max(1, engine.defaults.longest - max(1, max_new_tokens or 0))
    return truncation_of(body.truncate_prompt_tokens, body.truncation_side, longest=longest, default="left")


def request_id(body: GenerationBody) -> str:
    """Return the client's request id, that of the first prompt if each has one, or a new one."""
    ids = [id for id in client_ids(body)[:1] if id]
    return (ids or [new_id()])[0][:MAX_ID_CHARACTERS]


def client_ids(body: GenerationBody) -> list[str | None]:
    """Return the ids that the client knows the request by."""
    return [*body.rid] if isinstance(body.rid, list) else [body.rid or body.request_id]


class Usage:
    """Token counts of one request, updated with every part of its outputs."""

    def __init__(self, engine: TextEngine, prompts: Sequence[Sequence[int]], outputs: int) -> None:
        self._report_cached = engine.config.enable_cache_report
        self._prompt = sum(map(len, prompts))
        self._completion = [0] * outputs
        self._cached = [0] * outputs
        self._outputs_per_prompt = outputs // len(prompts)
        self.reasoning: int | None = None
        """Number of output tokens that were reasoning, once they have been counted."""

    def start(self, index: int, output: JobOutput) -> None:
        """Note what the first part of an output tells of the prompt, without counting its tokens."""
        self._cached[index] = output.cached_tokens

    def add(self, index: int, output: JobOutput) -> None:
        """Count the tokens of ``output``."""
        self._completion[index] = output.completion_tokens
        self._cached[index] = output.cached_tokens

    def report(self) -> dict[str, Any]:
        """Return ``usage`` in OpenAI's format. A prompt counts once, however many outputs it has."""
        completion = sum(self._completion)
        cached = sum(self._cached[:: self._outputs_per_prompt])
        usage: dict[str, Any] = {
            "prompt_tokens": self._prompt,
            "completion_tokens": completion,
            "total_tokens": self._prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached} if self._report_cached else None,
        }
        if self.reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return usage


class ResponseBuilder:
    """Builds responses and chunks of one request from the keys that they share."""

    def __init__(self, engine: TextEngine, body: GenerationBody, id: str, kind: str) -> None:
        self.model = body.model or engine.model_name
        self._shared = {"id": id, "object": kind, "created": int(time.time()), "model": self.model}

    def __call__(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return a response or chunk with these choices, and ``more`` fields after them."""
        envelope: dict[str, Any] = {**self._shared, "choices": choices}
        if usage is not None:
            envelope["usage"] = usage
        return {**envelope, **more}


def finish_reason(output: JobOutput) -> str | None:
    """Return OpenAI's name of the reason why an output ended."""
    return None if output.ending is None else output.ending.reason


def matched_stop(output: JobOutput) -> int | str | None:
    """Return the stop token or string that ended an output."""
    return None if output.ending is None else output.ending.matched
