"""The load generator against a small server of known behaviour."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from benchmarks.load import Load, Reply, arrivals, events, figures, prompts, run, show
from tests.benchmarks.asgi_server import Receive, Send, body_of, serving


class FakeServer:
    """A server with just enough of ``/generate`` and ``/v1/completions``, which records requests."""

    def __init__(self, mode: str = "good", tokens_per_event: int = 1) -> None:
        self.mode, self.tokens_per_event = mode, tokens_per_event
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.now = self.max_concurrent = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = json.loads(await body_of(receive))
        self.bodies.append(body)
        self.paths.append(scope["path"])
        self.now += 1
        self.max_concurrent = max(self.max_concurrent, self.now)
        try:
            await self.answer(body, scope["path"], send)
        finally:
            self.now -= 1

    async def answer(self, body: dict[str, Any], path: str, send: Send) -> None:
        if self.mode == "refuse":
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"queue is full"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for event in self.lines(body, path):
            half = len(event) // 2  # events arrive in pieces
            for piece in (event[:half], event[half:]):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.002)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def lines(self, body: dict[str, Any], path: str) -> list[bytes]:
        if path == "/generate":
            limit = body["sampling_params"]["max_new_tokens"] - (self.mode == "short")
            counts = [*range(self.tokens_per_event, limit, self.tokens_per_event), limit]
            results = [self.native(body, count) for count in counts]
            if self.mode == "error":
                results = [*results[:1], {"error": {"message": "the step failed"}}]
        else:
            results = [{"choices": [{"text": " a"}]} for _ in range(body["max_tokens"])]
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
            results.append({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 5}}})
        return [b"data: " + json.dumps(result).encode() + b"\n\n" for result in results]

    @staticmethod
    def native(body: dict[str, Any], count: int) -> dict[str, Any]:
        meta = {"prompt_tokens": len(body["input_ids"]), "completion_tokens": count, "cached_tokens": 2}
        return {"text": "x" * count, "output_ids": list(range(count)), "meta_info": meta}


async def test_generate_counts_tokens_and_times() -> None:
    app = FakeServer()
    async with serving(app) as url:
        result = await run(Load(url=url, requests=5, concurrency=2, input_len=7, output_len=6, shared_prefix_len=4))
    assert (result.failures, result.output_tokens, result.prompt_tokens, result.cached_tokens) == (0, 30, 55, 10)
    assert result.inter_token.count == 5 * 5 and result.first_token.count == 5
    assert result.output_rate == pytest.approx(30 / result.seconds)
    assert result.total_rate == pytest.approx(85 / result.seconds)
    assert app.max_concurrent == 2
    assert {body["sampling_params"]["ignore_eos"] for body in app.bodies} == {True}
    assert result.end_to_end.best > result.first_token.best > 0
    assert "30 output tokens" not in show(result) and "5 requests" in show(result)


async def test_several_tokens_in_one_event() -> None:
    async with serving(FakeServer(tokens_per_event=4)) as url:
        result = await run(Load(url=url, requests=2, input_len=3, output_len=10))
    assert (result.failures, result.output_tokens, result.inter_token.count) == (0, 20, 18)


async def test_completions() -> None:
    app = FakeServer()
    async with serving(app) as url:
        result = await run(Load(url=url, requests=3, input_len=8, output_len=4, api="completions", model="tiny"))
    assert (result.failures, result.output_tokens, result.prompt_tokens, result.cached_tokens) == (0, 12, 24, 15)
    assert set(app.paths) == {"/v1/completions"} and app.bodies[0]["model"] == "tiny"
    assert app.bodies[0]["ignore_eos"] is True and len(app.bodies[0]["prompt"]) == 8


@pytest.mark.parametrize(
    ("mode", "message"),
    [("short", "5 tokens instead of 6"), ("refuse", "status 503: queue is full"), ("error", "the step failed")],
)
async def test_failures_are_counted_and_shown(mode: str, message: str) -> None:
    async with serving(FakeServer(mode)) as url:
        result = await run(Load(url=url, requests=3, input_len=2, output_len=6))
    assert (result.failures, result.output_tokens) == (3, 0)
    assert message in result.errors[0] and message in show(result)


async def test_no_server() -> None:
    result = await run(Load(url="http://127.0.0.1:9", requests=1))
    assert result.failures == 1 and "ConnectError" in result.errors[0]


def test_prompts_share_their_prefix_and_follow_the_seed() -> None:
    load = Load(url="", requests=4, input_len=5, shared_prefix_len=9, vocabulary=100)
    token_lists = prompts(load)
    assert {len(item) for item in token_lists} == {14}
    assert len({tuple(item[:9]) for item in token_lists}) == 1 and len({tuple(item[9:]) for item in token_lists}) == 4
    assert all(3 <= token < 100 for item in token_lists for token in item)
    assert token_lists == prompts(load) != prompts(Load(url="", requests=4, input_len=5, shared_prefix_len=9, seed=1))


def test_arrivals() -> None:
    assert list(arrivals(Load(url="", requests=3))) == [0.0, 0.0, 0.0]
    times = list(arrivals(Load(url="", requests=2000, rate=50.0)))
    assert times == sorted(times) and times[-1] == pytest.approx(40.0, rel=0.15)


def test_tokens_of_one_event_share_its_time() -> None:
    reply = Reply(arrived=1.0, prompt_tokens=3, finished=6.0)
    reply.arrive(1, 2.0)
    reply.arrive(1 + 4, 6.0)
    assert reply.times == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert (reply.first, reply.gaps) == (1.0, [1.0] * 4)
    result = figures([reply, Reply(arrived=0.0, finished=4.0, error="lost")], started=1.0)
    assert (result.seconds, result.output_rate, result.failures, result.errors) == (5.0, 1.0, 1, ("lost",))
    assert result.inter_token.p99 == 1.0 and result.end_to_end.p50 == 5.0


async def test_events_may_be_split_anywhere() -> None:
    stream = b'data: {"a": 1}\n\n: comment\r\n\r\ndata:{"b": 2}\r\n\r\ndata: [DONE]'

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    for size in range(1, len(stream) + 1):
        assert [event async for event in events(pieces(size))] == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
