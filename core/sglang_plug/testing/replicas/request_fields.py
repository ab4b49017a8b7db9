"""Conformance test of deployments: everything that a request or a call carries arrives, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import get_args

from sglang_plug.clients.pending import merge
from sglang_plug.contracts.request import LogprobOptions, Output, Request, RequestError, Task
from sglang_plug.contracts.serving.engine_client import EngineClient
from sglang_plug.contracts.serving.observer import StepStats

from .engine_starts import soon
from .requests import SHORT, is_idle, make_request, read_info, read_outputs, refused, until

PREFIX = tuple(range(5, 69))
"""A prompt that is long enough to be kept in a prefix cache."""


async def check_fields(client: EngineClient) -> None:
    """Fields of requests and of outputs arrive as they were sent."""
    await _check_logprobs(client)
    await _check_stop(client)
    await _check_cached_tokens(client)
    tasks = (await read_info(client))["tasks"]
    for task in set(get_args(Task)) - set(tasks):
        await refused(read_outputs(client, make_request("task", 1, task=task)), f"the task {task!r}")
    adapter = make_request("adapter", 1, adapter="no-such-adapter")
    await refused(read_outputs(client, adapter), "an adapter that is not loaded")
    params = replace(adapter.params, processor_fields={"no_such_field": 1})
    error = await refused(read_outputs(client, make_request("field", 1, params=params)), "an unknown request field")
    assert error.about == "processor_fields", (
        f"an unknown request field was refused with about={error.about!r}, not 'processor_fields'"
    )


async def _check_logprobs(client: EngineClient) -> None:
    request = make_request("logprobs", SHORT, logprobs=LogprobOptions(start=0, top=1))
    output = await _read(client, request)
    assert [logprob.token for logprob in output.logprobs] == list(output.tokens), (
        f"{len(output.tokens)} tokens came with the log-probabilities of {len(output.logprobs)}"
    )
    assert [logprob.top[0][0] for logprob in output.logprobs] == list(output.tokens), (
        "the most likely tokens are not those that were generated without sampling"
    )
    assert [logprob.token for logprob in output.prompt_logprobs] == list(request.tokens), (
        f"a prompt of {len(request.tokens)} tokens came with the log-probabilities of {len(output.prompt_logprobs)}"
    )


async def _check_stop(client: EngineClient) -> None:
    whole = await _read(client, make_request("whole", SHORT))
    assert whole.finish is not None and whole.finish.reason == "length", f"{whole.finish} is not the reason 'length'"
    stop = whole.tokens[SHORT // 2]
    end = whole.tokens.index(stop) + 1
    request = make_request("stopped", SHORT)
    stopped = await _read(client, replace(request, params=replace(request.params, stop_token_ids=(stop,))))
    assert stopped.tokens == whole.tokens[:end], "a request does not end with its stop token"
    assert stopped.finish is not None and (stopped.finish.reason, stopped.finish.matched) == ("stop", stop), (
        f"{stopped.finish} does not say that the token {stop} ended the request"
    )


async def _check_cached_tokens(client: EngineClient) -> None:
    """Outputs have the numbers of the engine, and prefixes are shared within a salt only."""
    steps: list[StepStats] = []
    client.on_step(steps.append)
    for number, salt in enumerate(("", "", "tenant")):
        await until(lambda: is_idle(client), "the end of a request")
        steps.clear()
        output = await _read(client, make_request(f"prefix-{number}", SHORT, PREFIX, salt=salt))

        async def has_prompt() -> bool:
            return sum(step.prefill_tokens + step.cached_tokens for step in steps) >= len(PREFIX)

        await until(has_prompt, f"a call of the listener for the {len(PREFIX)} tokens of a prompt")
        cached = sum(step.cached_tokens for step in steps)
        assert output.cached_tokens == cached, (
            f"the output has {output.cached_tokens} cached tokens, the step's statistics {cached}"
        )
        assert not (salt and cached), "a prefix is shared by requests with different salts"


async def _read(client: EngineClient, request: Request) -> Output:
    outputs: Sequence[Output] = await read_outputs(client, request)
    return reduce(merge, outputs)


async def check_controls(client: EngineClient) -> None:
    """Calls that run at once get their own replies, and calls get their arguments."""
    await until(lambda: is_idle(client), "the end of requests")
    calls = ("info", "flush_cache", "check")
    replies = await soon(asyncio.gather(*map(client.control, calls)), "control calls that run at once")
    for name, reply in zip(calls, replies, strict=True):
        alone = await soon(client.control(name), f"the control call {name!r}")
        assert reply.keys() == alone.keys(), f"the control call {name!r} got the reply of another one"
    source = replies[0]["checkpoint_path"]
    try:
        await soon(client.control("update_weights", source=source), "the control call 'update_weights'")
    except RequestError as error:
        raise AssertionError(
            f"the control call 'update_weights' with source={source!r} was refused: {error}"
        ) from error
