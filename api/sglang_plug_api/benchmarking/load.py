"""Sends the requests of a benchmark at the chosen times and records when the answers come."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

from .figures import RequestResult
from .prompts import Prompt

Api = Literal["openai", "openai-chat", "sglang"]
PATHS: dict[str, str] = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions", "sglang": "/generate"}
END = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Parameters of the requests."""

    base_url: str
    api: Api
    model: str
    api_key: str | None = None
    request_rate: float = math.inf
    """Mean requests per second; infinite: all are sent at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the time between requests; 1 is a Poisson process."""
    max_concurrency: int | None = None
    ignore_eos: bool = True
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters of each request, under the names that all APIs share."""
    seed: int = 0
    endpoint: str | None = None
    """Path of the API, if it is not the usual one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of each request."""

    def with_model(self, model: str) -> Load:
        """Return the same load for a model."""
        return replace(self, model=model)


def arrivals(load: Load, count: int) -> Iterator[float]:
    """Yield the time of each request in seconds from the start."""
    generator, now = random.Random(load.seed), 0.0
    for _ in range(count):
        yield now
        if math.isfinite(load.request_rate):
            now += generator.gammavariate(load.burstiness, 1 / (load.request_rate * load.burstiness))


async def send_all(
    load: Load, prompts: Sequence[Prompt], done: Callable[[], None]
) -> tuple[list[RequestResult], float]:
    """Send all requests; return their results and the seconds until the last one ended.

    Args:
        load: how to send.
        prompts: one for each request.
        done: called when a request has ended.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    semaphore = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
    async with httpx.AsyncClient(
        base_url=load.base_url, headers=request_headers(load), timeout=None, limits=limits
    ) as client:
        started = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - started

        async def send(prompt: Prompt, arrival: float) -> RequestResult:
            await asyncio.sleep(max(0.0, arrival - now()))
            async with semaphore:
                result = RequestResult(sent=now())
                await _send_request(client, load, prompt, result, now)
            done()
            return result

        results = await asyncio.gather(*map(send, prompts, arrivals(load, len(prompts))))
        return results, now()


def request_headers(load: Load) -> dict[str, str]:
    """Return the headers of each request; those of the user come last."""
    return {**({} if load.api_key is None else {"Authorization": f"Bearer {load.api_key}"}), **load.headers}


def request_body(load: Load, prompt: Prompt) -> dict[str, Any]:
    """Return the request for one prompt. The native API takes texts and token ids, the chat API texts only."""
    if load.api == "sglang":
        name = "text" if isinstance(prompt.content, str) else "input_ids"
        sampling = {"max_new_tokens": prompt.output_len, "ignore_eos": load.ignore_eos, **load.sampling}
        return {name: prompt.content, "sampling_params": sampling, "stream": True}
    body: dict[str, Any] = {
        "model": load.model,
        "max_tokens": prompt.output_len,
        **load.sampling,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.ignore_eos:
        body["ignore_eos"] = True
    if load.api == "openai-chat":
        return {**body, "messages": [{"role": "user", "content": prompt.content}]}
    return {**body, "prompt": prompt.content}


async def _send_request(
    client: httpx.AsyncClient, load: Load, prompt: Prompt, result: RequestResult, now: Callable[[], float]
) -> None:
    try:
        async with client.stream("POST", load.endpoint or PATHS[load.api], json=request_body(load, prompt)) as answer:
            if answer.status_code != httpx.codes.OK:
                text = (await answer.aread()).decode(errors="replace")
                result.error = f"status {answer.status_code}: {text[:200]}"
                return
            async for data in _events(answer):
                _record(json.loads(data), result, now())
        if not result.error and not result.arrivals:
            if not result.output_tokens:
                result.error = "the answer is empty"
            result.arrivals.append(now())  # tokens without text, such as special ones, come to light at the end
    except (httpx.HTTPError, OSError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    finally:
        result.finished = now()


async def _events(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event as soon as it is complete."""
    partial_line = b""
    async for chunk in answer.aiter_bytes():
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != END:
                yield data


def _record(event: Mapping[str, Any], result: RequestResult, now: float) -> None:
    if "error" in event:
        result.error = str(event["error"])[:200]
        return
    if "meta_info" in event:  # the native API
        usage = event["meta_info"]
        has_text = usage.get("completion_tokens", 0) > result.output_tokens
        finish = usage.get("finish_reason") or {}
        if finish.get("type") == "abort":
            result.error = str(finish.get("message", "aborted"))[:200]
    else:
        usage = event.get("usage") or {}
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta") or choices[0]
        has_text = any(delta.get(name) for name in ("text", "content", "reasoning_content"))
    if has_text:
        result.arrivals.append(now)
    result.prompt_tokens = usage.get("prompt_tokens", result.prompt_tokens)
    result.output_tokens = usage.get("completion_tokens", result.output_tokens)
