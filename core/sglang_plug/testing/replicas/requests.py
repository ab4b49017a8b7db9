"""Requests and calls of the conformance test of deployments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from sglang_plug.contracts.request import Output, Request, RequestError
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.engine_client import EngineClient

from . import engine_starts
from .engine_starts import soon

POLL = 0.02
PROMPT = (5, 6, 7, 8)
SHORT, LONG, ENDLESS = 12, 240, 1600
"""Output tokens of requests; endless ones are those that end early."""


async def until(holds: Callable[[], Awaitable[bool]], event: str) -> None:
    """Wait until something holds. Raises ``AssertionError`` if that takes too long."""
    deadline = time.monotonic() + engine_starts.TIMEOUT_SECONDS
    while not await holds():
        assert time.monotonic() < deadline, f"{event} did not happen within {engine_starts.TIMEOUT_SECONDS:g} s"
        await asyncio.sleep(POLL)


def make_request(id: str, tokens: int, prompt: Sequence[int] = PROMPT, **fields: Any) -> Request:
    """Return a request for a number of tokens, which are not sampled."""
    params = SamplingParams(temperature=0.0, max_new_tokens=tokens)
    return replace(Request(id=id, tokens=tuple(prompt), params=params, arrived=time.time()), **fields)


async def read_outputs(client: EngineClient, request: Request) -> list[Output]:
    """Return every output of a request, after checking that they belong together."""
    received: list[Output] = []

    async def read() -> None:
        async with aclosing(client.submit(request)) as outputs:
            async for output in outputs:
                received.append(output)

    await soon(read(), f"a request for {request.params.max_new_tokens} tokens")
    assert {output.id for output in received} == {request.id}, "a request received outputs of another one"
    finished = [output.finish is not None for output in received]
    assert finished == [False] * (len(received) - 1) + [True], "the last output, and no other, must have finish set"
    return received


async def read_tokens(client: EngineClient, request: Request) -> tuple[int, ...]:
    """Return the tokens of a request, after checking their number."""
    tokens = tuple(token for output in await read_outputs(client, request) for token in output.tokens)
    expected = request.params.max_new_tokens
    assert len(tokens) == expected, f"a request for {expected} tokens received {len(tokens)}"
    return tokens


async def read_info(client: EngineClient) -> Mapping[str, Any]:
    """Return what the engine says of itself now."""
    info: Mapping[str, Any] = await soon(client.control("info"), "the control call 'info'")
    return info


async def is_idle(client: EngineClient) -> bool:
    """Report whether no request is in the engine."""
    info = await read_info(client)
    return not (info["running"] or info["waiting"] or info["paused"])


async def refused(work: Awaitable[object], case: str) -> RequestError:
    """Return the error of a request or call that has to be refused."""
    try:
        await soon(work, f"the refusal of {case}")
    except RequestError as error:
        return error
    raise AssertionError(f"{case} was not refused with a RequestError")
