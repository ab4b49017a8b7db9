"""Conformance test of deployments: an engine with a small model, served as the API process serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from sglang_plug.config import AUTO, CacheOptions, EngineConfig, ModelOptions, ScheduleOptions
from sglang_plug.contracts.request import LogprobOptions
from sglang_plug.contracts.serving.engine_client import EngineClient, EngineError, EngineLaunch
from sglang_plug.contracts.serving.observer import StepStats
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.registry import Plugins

from .engine_starts import Deploy, check_starts, soon
from .left_behind import check_ended, threads_and_processes
from .request_fields import check_controls, check_fields
from .requests import (
    ENDLESS,
    LONG,
    PROMPT,
    SHORT,
    is_idle,
    make_request,
    read_info,
    read_outputs,
    read_tokens,
    refused,
    until,
)

READ_AT_ONCE = 8
"""Greatest number of outputs that a reader who was slow may find instead of one that is merged."""
FACTS = ("architecture", "checkpoint_path", "context_length", "fingerprint", "tasks", "vocab_size")


def check_engine_client(
    deployment: str | Callable[[EngineLaunch], EngineClient], *, model: str = AUTO, plugins: Plugins | None = None
) -> None:
    """Start an engine, serve requests of every kind, let it die, and start another one.

    Tests streams, aborts by closing, merged outputs for slow readers, the fields of requests and outputs, refusals,
    control calls, statistics of steps, the death of the engine with requests in flight, a start after it, its end with
    a request in flight, and starts that fail or are cancelled.

    Args:
        deployment: a function that makes a client which was not started, or the name an installed plugin declared it
            under.
        model: a model that generates, with a context of at least 1,700 tokens; ``auto``: the embedded demo model.
        plugins: the discovered plugins; ``None``: discover them.

    Raises:
        AssertionError: says what the first failing case is.
        PluginError: no plugin, or more than one, declares the name.
    """
    plugins = Plugins.discover() if plugins is None else plugins
    config = EngineConfig(
        model=ModelOptions(path=model, device="cpu"),
        cache=CacheOptions(max_total_tokens=2 * ENDLESS + 200),
        schedule=ScheduleOptions(max_running_requests=8),
        plugins=plugins.options,
    )
    launch = EngineLaunch(config=config, plugins=plugins)
    asyncio.run(_check(_maker(deployment, plugins), launch))


def _maker(deployment: str | Deploy, plugins: Plugins) -> Deploy:
    if not isinstance(deployment, str):
        return deployment
    component = plugins.get("deployment", deployment)

    def deploy(launch: EngineLaunch) -> EngineClient:
        client: EngineClient = make(component, launch, component.settings(), contract=EngineClient)
        return client

    return deploy


async def _check(deploy: Deploy, launch: EngineLaunch) -> None:
    client = deploy(launch)
    assert isinstance(client, EngineClient), f"the deployment returned {type(client).__name__}, not an EngineClient"
    try:
        _check_info(await soon(client.start(), "start()"), launch)
        expected = await read_tokens(client, make_request("first", SHORT))
        for check in CHECKS:
            await check(client)
        assert client.failure is None, f"failure is {client.failure!r} while the engine serves"
        await _check_death(client)
    finally:
        await soon(client.close(), "close()")
    await soon(client.close(), "a second close()")
    shared = threads_and_processes()  # what a deployment keeps for its further clients
    again = deploy(launch)
    try:
        await soon(again.start(), "start() of another client after the first engine has died")
        tokens = await read_tokens(again, make_request("first", SHORT))
        assert tokens == expected, "another engine of the same configuration generates other tokens without sampling"
        outputs = again.submit(make_request("open", ENDLESS))
        await soon(anext(outputs), "the first output of a request")  # its reader takes no other one
        await soon(again.close(), "close() with a request in flight")
        await soon(outputs.aclose(), "closing the iterator after close()")
    finally:
        await soon(again.close(), "close() of the second client")
    await check_ended(shared)
    await check_starts(deploy, launch)


def _check_info(info: Mapping[str, Any], launch: EngineLaunch) -> None:
    missing = [key for key in FACTS if key not in info]
    assert not missing, f"start() returned no {missing[0]!r}: it must return the engine's info"
    fingerprint = {tuple(plugin) for plugin in info["fingerprint"]}
    assert fingerprint == set(launch.plugins.fingerprint), (
        f"start() returned the fingerprint {fingerprint}, but the engine has to have the plugins of its launch"
    )


async def _check_streams(client: EngineClient) -> None:
    """Several requests at once, each with its own tokens, which come before all of them are there."""
    prompts = [(*PROMPT, number) for number in range(1, 5)]
    lengths = [SHORT + 5 * number for number in range(len(prompts))]  # they end at different times
    alone, together = (
        [
            make_request(f"{name}-{index}", length, prompt)
            for index, (length, prompt) in enumerate(zip(lengths, prompts, strict=True))
        ]
        for name in ("alone", "together")
    )
    expected = [await read_tokens(client, request) for request in alone]
    tokens = await asyncio.gather(*(read_tokens(client, request) for request in together))
    assert tokens == expected, "requests that are served together have other tokens than alone, without sampling"
    assert len(await read_outputs(client, make_request("long", LONG))) > 1, (
        f"the {LONG} tokens of a request came in one output; they must come as they are generated"
    )


async def _check_abort(client: EngineClient) -> None:
    """Closing an iterator, or cancelling its reader, ends the request in the engine."""
    steps: list[StepStats] = []
    client.on_step(steps.append)
    outputs = client.submit(make_request("abandoned", ENDLESS))
    await soon(anext(outputs), "the first output of a request")
    await soon(outputs.aclose(), "closing the iterator")
    await until(lambda: is_idle(client), "the end of a request whose iterator was closed")
    assert _decoded(steps) < ENDLESS - 1, "a request was computed to its end although its iterator was closed"
    reader = asyncio.create_task(read_outputs(client, make_request("cancelled", ENDLESS)))
    await until(lambda: _runs(client), "the start of a request")
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await until(lambda: is_idle(client), "the end of a request whose reader was cancelled")
    assert _decoded(steps) < 2 * ENDLESS - 2, "a request was computed to its end although its reader was cancelled"
    await read_tokens(client, make_request("abandoned", SHORT))  # its id is free again


def _decoded(steps: Sequence[StepStats]) -> int:
    return sum(stats.decode_sequences for stats in steps)


async def _runs(client: EngineClient) -> bool:
    return bool((await read_info(client))["running"])


async def _check_slow_reader(client: EngineClient) -> None:
    """Outputs that wait are merged, and the request is paused, so that it does not occupy the model."""
    expected = await read_tokens(client, make_request("quick", LONG))
    async with aclosing(client.submit(make_request("slow", LONG, logprobs=LogprobOptions()))) as outputs:
        tokens = list((await soon(anext(outputs), "the first output of a request")).tokens)

        async def is_still() -> bool:
            info = await read_info(client)
            return not (info["running"] or info["waiting"])

        await until(is_still, f"the pause of a request for {LONG} tokens which nobody reads")
        assert (await read_info(client))["paused"] == 1, (
            f"a request for {LONG} tokens which nobody reads was computed to its end; it must be paused"
        )
        await read_tokens(client, make_request("other", SHORT))
        waiting = await soon(anext(outputs), "the outputs that wait for a slow reader")
        tokens += waiting.tokens
        assert len(waiting.tokens) > READ_AT_ONCE, (
            f"a reader who was slow received {len(waiting.tokens)} tokens; outputs that wait must be merged into one"
        )
        assert len(waiting.logprobs) == len(waiting.tokens), (
            f"{len(waiting.tokens)} tokens that waited came with {len(waiting.logprobs)} log-probabilities"
        )
        async for output in outputs:
            tokens += output.tokens
    assert tuple(tokens) == expected, "a slow reader received other tokens than a quick one"


async def _check_refusals(client: EngineClient) -> None:
    size = (await read_info(client))["vocab_size"]
    await refused(read_outputs(client, make_request("refused", 1, (size,))), "a token outside of the vocabulary")
    async with aclosing(client.submit(make_request("twice", ENDLESS))) as outputs:
        await soon(anext(outputs), "the first output of a request")
        await refused(read_outputs(client, make_request("twice", 1)), "the id of a request in flight")
        await soon(anext(outputs), "another output of a request whose id was used again")
    error = await refused(client.control("no_such_call"), "an unknown control call")
    assert error.status == 404, f"an unknown control call was refused with status {error.status}, not 404"
    await until(lambda: is_idle(client), "the end of refused requests")
    answer = await soon(client.control("flush_cache"), "the control call 'flush_cache'")
    assert answer["success"], "flush_cache did not succeed while no request was in flight"


async def _check_steps(client: EngineClient) -> None:
    observed: tuple[list[StepStats], list[StepStats]] = ([], [])
    for steps in observed:
        client.on_step(steps.append)
    await read_tokens(client, make_request("counted", SHORT))

    async def has_all() -> bool:
        return any(_decoded(steps) >= SHORT - 1 for steps in observed)

    await until(has_all, f"a call of the listener for each of {SHORT} steps")
    assert observed[0] == observed[1], "two listeners received different steps"


async def _check_death(client: EngineClient) -> None:
    """Every request and call ends with an error when the engine dies, and none is accepted afterwards."""
    streams = [client.submit(make_request(f"last-{number}", ENDLESS)) for number in range(2)]
    for outputs in streams:
        await soon(anext(outputs), "the first output of a request")
    waiters = [asyncio.create_task(client.wait_failed()) for _ in range(2)]
    await asyncio.wait(waiters, timeout=0)
    assert not any(waiter.done() for waiter in waiters), "wait_failed() returned although the engine serves"
    try:
        await soon(asyncio.to_thread(client.kill), "kill()")
    except RuntimeError as error:
        raise AssertionError(f"kill() from another thread than the event loop's raised {error!r}") from error
    for outputs in streams:
        await _fails(_drained(outputs), "a request in flight when kill() was called")
    reasons = [await soon(waiter, "wait_failed() that ran when kill() was called") for waiter in waiters]
    reasons.append(await soon(client.wait_failed(), "wait_failed() after kill()"))
    assert all(reasons) and client.failure, "failure must say why the engine cannot serve after kill()"
    await _fails(read_outputs(client, make_request("late", 1)), "a request to an engine that has ended")
    await _fails(client.control("info"), "a control call to an engine that has ended")


async def _drained(outputs: Any) -> None:
    async for _ in outputs:
        pass


async def _fails(work: Awaitable[object], case: str) -> None:
    try:
        await soon(work, f"the error of {case}")
    except EngineError:
        return
    raise AssertionError(f"{case} did not end with an EngineError")


CHECKS = (
    _check_streams,
    _check_abort,
    _check_slow_reader,
    _check_refusals,
    check_fields,
    check_controls,
    _check_steps,
)
