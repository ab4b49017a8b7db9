"""Load generator over HTTP: token ids in, streamed tokens out, times between.

Run as ``python -m benchmarks.load --url http://127.0.0.1:30000``. Works with ``/generate`` and with
``/v1/completions`` of any server that takes token ids as a prompt.

The client must not take the server's cores: on a small machine it costs some percent of one core at a few hundred
tokens per second, which the figures then contain. Streams are scanned, not parsed: only the number after
``completion_tokens`` is read from each event, and the last event is decoded.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from benchmarks.common.report import Summary, parser, table, write_json

Api = Literal["generate", "completions"]
FIRST_TOKEN = 3
"""Smallest token id in a prompt: the ones below are special in the benchmark's models."""
COUNT = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Parameters of the requests."""

    url: str
    requests: int = 16
    concurrency: int | None = None
    """Maximum requests in flight; ``None``: no limit."""
    rate: float | None = None
    """Mean arrivals per second, Poisson; ``None``: as soon as a request finishes."""
    input_len: int = 128
    output_len: int = 128
    shared_prefix_len: int = 0
    """Tokens of the common prefix of all prompts, besides ``input_len`` own ones."""
    vocabulary: int = 32_768
    seed: int = 0
    api: Api = "generate"
    model: str = "default"
    """Model name for ``/v1/completions``."""
    timeout: float = 1800.0


@dataclass(slots=True)
class Reply:
    """One request and its result. Times are ``time.perf_counter()``."""

    arrived: float
    """Scheduled time of the request: waiting for concurrency counts as latency."""
    times: list[float] = field(default_factory=list)
    """Arrival time of each output token; tokens of one event share the time since the previous event."""
    finished: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def first(self) -> float:
        """Return the seconds to the first token."""
        return self.times[0] - self.arrived

    @property
    def gaps(self) -> list[float]:
        """Return the seconds between tokens."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    def arrive(self, total: int, now: float) -> None:
        """Record that ``total`` tokens have arrived by ``now``."""
        new = total - len(self.times)
        before = self.times[-1] if self.times else now
        self.times += [before + (now - before) * (index + 1) / new for index in range(new)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of a load run. Times in seconds."""

    requests: int
    failures: int
    errors: tuple[str, ...]
    """The first few errors."""
    seconds: float
    """Seconds from the first request sent to the last one finished."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_rate: float
    """Output tokens per second."""
    total_rate: float
    """Prompt and output tokens per second."""
    first_token: Summary
    inter_token: Summary
    end_to_end: Summary


def prompts(load: Load) -> list[list[int]]:
    """Generate random prompts, deterministic by seed."""
    generator = random.Random(load.seed)

    def tokens(count: int) -> list[int]:
        return [generator.randrange(FIRST_TOKEN, load.vocabulary) for _ in range(count)]

    shared = tokens(load.shared_prefix_len)
    return [shared + tokens(load.input_len) for _ in range(load.requests)]


def arrivals(load: Load) -> Iterator[float]:
    """Return the arrival of each request in seconds from the start."""
    generator, now = random.Random(load.seed + 1), 0.0
    for _ in range(load.requests):
        yield now
        if load.rate is not None:
            now += generator.expovariate(load.rate)


def figures(replies: Sequence[Reply], started: float) -> Figures:
    """Summarise ``replies``; failed ones count as failures only."""
    good = [reply for reply in replies if not reply.error]
    errors = [reply.error for reply in replies if reply.error]
    seconds = max((reply.finished for reply in replies), default=started) - started
    output = sum(len(reply.times) for reply in good)
    prompt = sum(reply.prompt_tokens for reply in good)
    return Figures(
        requests=len(replies),
        failures=len(errors),
        errors=tuple(dict.fromkeys(errors))[:5],
        seconds=seconds,
        prompt_tokens=prompt,
        cached_tokens=sum(reply.cached_tokens for reply in good),
        output_tokens=output,
        output_rate=output / seconds if seconds else 0.0,
        total_rate=(prompt + output) / seconds if seconds else 0.0,
        first_token=Summary.of(reply.first for reply in good),
        inter_token=Summary.of(gap for reply in good for gap in reply.gaps),
        end_to_end=Summary.of(reply.finished - reply.arrived for reply in good),
    )


# -- sending ------------------------------------------------------------------------------------------------------


async def run(load: Load) -> Figures:
    """Send ``load`` and wait for every answer."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=load.url, timeout=load.timeout, limits=limits) as client:
        bodies = [body(load, tokens) for tokens in prompts(load)]
        semaphore = asyncio.Semaphore(load.concurrency or max(1, load.requests))
        started = time.perf_counter()

        async def send(request: dict[str, Any], arrival: float) -> Reply:
            await asyncio.sleep(max(0.0, started + arrival - time.perf_counter()))
            async with semaphore:
                reply = Reply(time.perf_counter() if load.rate is None else started + arrival)
                await ask(client, load, request, reply)
                return reply

        replies = await asyncio.gather(*map(send, bodies, arrivals(load)))
    return figures(replies, started)


def body(load: Load, tokens: list[int]) -> dict[str, Any]:
    """Build the request for one prompt: greedy, exactly ``output_len`` tokens."""
    if load.api == "generate":
        sampling = {"temperature": 0, "max_new_tokens": load.output_len, "ignore_eos": True}
        return {"input_ids": tokens, "sampling_params": sampling, "stream": True}
    return {
        "model": load.model,
        "prompt": tokens,
        "max_tokens": load.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def ask(client: httpx.AsyncClient, load: Load, request: dict[str, Any], reply: Reply) -> None:
    """Send ``request`` and record its answer in ``reply``, an error too."""
    path = "/generate" if load.api == "generate" else "/v1/completions"
    try:
        async with client.stream("POST", path, json=request) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                reply.error = f"status {response.status_code}: {text[:200]}"
                return
            last = await _listen(response, reply)
        _account(last, reply)
        if not reply.error and len(reply.times) != load.output_len:
            reply.error = f"{len(reply.times)} tokens instead of {load.output_len}"
    except (httpx.HTTPError, OSError, ValueError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    finally:
        reply.finished = time.perf_counter()


async def _listen(response: httpx.Response, reply: Reply) -> bytes:
    """Count tokens as they come; returns the last event's data."""
    last = b""
    async for event in events(response.aiter_bytes()):
        now = time.perf_counter()
        if event == b"[DONE]":
            break
        last = event
        result = COUNT.search(event)
        total = int(result[1]) if result else len(reply.times) + (b'"text"' in event)
        if total > len(reply.times):
            reply.arrive(total, now)
    return last


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event, which may be split over chunks."""
    partial_line = b""
    async for chunk in chunks:
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if partial_line.startswith(b"data:"):
        yield partial_line[5:].strip()


def _account(event: bytes, reply: Reply) -> None:
    """Read token counts, or the error, from the last event."""
    if not event:
        reply.error = "the stream ended without an event"
        return
    data = json.loads(event)
    if "error" in data:
        reply.error = str(data["error"])[:200]
        return
    usage = data.get("meta_info") or data.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    reply.prompt_tokens = usage.get("prompt_tokens", 0)
    reply.cached_tokens = usage.get("cached_tokens", details.get("cached_tokens", 0)) or 0
    finish = usage.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") == "abort":
        reply.error = str(finish.get("message", "aborted"))[:200]


# -- command line -------------------------------------------------------------------------------------------------


def show(figures: Figures) -> str:
    """Format a table of times in milliseconds, followed by the rates."""
    rows = [
        (name, item.mean * 1e3, item.p50 * 1e3, item.p95 * 1e3, item.p99 * 1e3, item.best * 1e3)
        for name, item in (
            ("time to first token", figures.first_token),
            ("inter-token latency", figures.inter_token),
            ("end to end", figures.end_to_end),
        )
    ]
    lines = [
        table(("milliseconds", "mean", "p50", "p95", "p99", "best"), rows),
        f"{figures.requests} requests in {figures.seconds:.2f} s, {figures.failures} failed; "
        f"{figures.output_rate:.1f} output tokens/s, {figures.total_rate:.1f} tokens/s in all; "
        f"{figures.cached_tokens} of {figures.prompt_tokens} prompt tokens from the prefix cache",
        *(f"failed: {error}" for error in figures.errors),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run a load; the exit status is 1 if a request failed."""
    options = parser(__doc__)
    options.add_argument("--url", default="http://127.0.0.1:30000")
    options.add_argument("--requests", type=int, default=16)
    options.add_argument("--concurrency", type=int, help="maximum number of requests in flight; all of them otherwise")
    options.add_argument("--rate", type=float, help="mean arrivals per second (Poisson)")
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=128)
    options.add_argument("--shared-prefix-len", type=int, default=0, help="comes before the input's own tokens")
    options.add_argument("--vocabulary", type=int, default=32_768, help="prompt token ids are below this")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--api", choices=("generate", "completions"), default="generate")
    options.add_argument("--model", default="default", help="name that /v1/completions asks for")
    args = vars(options.parse_args())
    file = args.pop("json")
    load = Load(**args)
    result = asyncio.run(run(load))
    print(show(result))
    write_json(file, {"load": load, "figures": result})
    return 1 if result.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
