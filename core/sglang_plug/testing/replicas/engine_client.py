"""Conformance test of deployments: an engine with a small model, served as the API process serves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from sglang_plug.config import AUTO, CacheOptions, EngineConfig, ModelOptions, ScheduleOptions
from sglang_plug.contracts.request import Output, Request, RequestError
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.engine_client import EngineClient, EngineError, EngineLaunch
from sglang_plug.contracts.serving.observer import StepStats
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.registry import Plugins

from .engine_starts import PATIENCE, Deploy, check_starts, soon

POLL = 0.02
PROMPT = (5, 6, 7, 8)
SHORT, LONG, ENDLESS = 12, 240, 1600
"""Output tokens of requests; endless ones are those that end early."""
READ_AT_ONCE = 8
"""Greatest number of outputs that a reader who was slow may find instead of one that is merged."""
FACTS = ("architecture", "checkpoint_path", "context_length", "fingerprint", "tasks", "vocab_size")


def check_engine_client(
    deployment: str | Callable[[EngineLaunch], EngineClient], *, model: str = AUTO, plugins: Plugins | None = None
) -> None:
    """Start an engine, serve requests of every kind, let it die, and start another one.

    Tests streams, aborts by closing, merged outputs for slow readers, refusals, control calls, statistics of steps,
    the death of the engine with requests in flight, a start after it, and starts that fail or are cancelled.

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
        expected = await _tokens(client, _request("first", SHORT))
        for check in (_check_streams, _check_abort, _check_slow_reader, _check_refusals, _check_steps):
            await check(client)
        assert client.failure is None, f"failure is {client.failure!r} while the engine serves"
        await _check_death(client)
    finally:
        await soon(client.close(), "close()")
    await soon(client.close(), "a second close()")
    again = deploy(launch)
    try:
        await soon(again.start(), "start() of another client after the first engine has died")
        tokens = await _tokens(again, _request("first", SHORT))
        assert tokens == expected, "another engine of the same configuration generates other tokens without sampling"
    finally:
        await soon(again.close(), "close() of the second client")
    await check_starts(deploy, launch)


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE:g} s"
        await asyncio.sleep(POLL)


def _request(id: str, tokens: int, prompt: Sequence[int] = PROMPT) -> Request:
    return Request(
        id=id, tokens=tuple(prompt), params=SamplingParams(temperature=0.0, max_new_tokens=tokens), arrived=time.time()
    )


async def _outputs(client: EngineClient, request: Request) -> list[Output]:
    """Return every output of a request, after checking that they belong together."""
    found: list[Output] = []

    async def read() -> None:
        async with aclosing(client.submit(request)) as outputs:
            async for output in outputs:
                found.append(output)

    await soon(read(), f"a request for {request.params.max_new_tokens} tokens")
    assert {output.id for output in found} == {request.id}, "a request received outputs of another one"
    finished = [output.finish is not None for output in found]
    assert finished == [False] * (len(found) - 1) + [True], "the last output, and no other, must have finish set"
    return found


async def _tokens(client: EngineClient, request: Request) -> tuple[int, ...]:
    tokens = tuple(token for output in await _outputs(client, request) for token in output.tokens)
    expected = request.params.max_new_tokens
    assert len(tokens) == expected, f"a request for {expected} tokens received {len(tokens)}"
    return tokens


async def _info(client: EngineClient) -> Mapping[str, Any]:
    info: Mapping[str, Any] = await soon(client.control("info"), "the control call 'info'")
    return info


async def _is_idle(client: EngineClient) -> bool:
    info = await _info(client)
    return not (info["running"] or info["waiting"] or info["paused"])


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
    alone = [await _tokens(client, _request(f"alone-{number}", SHORT, prompt)) for number, prompt in enumerate(prompts)]
    together = await asyncio.gather(
        *(_tokens(client, _request(f"together-{number}", SHORT, prompt)) for number, prompt in enumerate(prompts))
    )
    assert list(together) == alone, "requests that are served together have other tokens than alone, without sampling"
    assert len(await _outputs(client, _request("long", LONG))) > 1, (
        f"the {LONG} tokens of a request came in one output; they must come as they are generated"
    )


async def _check_abort(client: EngineClient) -> None:
    """Closing an iterator, or cancelling its reader, ends the request in the engine."""
    steps: list[StepStats] = []
    client.on_step(steps.append)
    outputs = client.submit(_request("abandoned", ENDLESS))
    await soon(anext(outputs), "the first output of a request")
    await soon(outputs.aclose(), "closing the iterator")
    await _until(lambda: _is_idle(client), "the end of a request whose iterator was closed")
    assert _decoded(steps) < ENDLESS - 1, "a request was computed to its end although its iterator was closed"
    reader = asyncio.create_task(_outputs(client, _request("cancelled", ENDLESS)))
    await _until(lambda: _runs(client), "the start of a request")
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await _until(lambda: _is_idle(client), "the end of a request whose reader was cancelled")
    assert _decoded(steps) < 2 * ENDLESS - 2, "a request was computed to its end although its reader was cancelled"
    await _tokens(client, _request("abandoned", SHORT))  # its id is free again


def _decoded(steps: Sequence[StepStats]) -> int:
    return sum(stats.decode_sequences for stats in steps)


async def _runs(client: EngineClient) -> bool:
    return bool((await _info(client))["running"])


async def _check_slow_reader(client: EngineClient) -> None:
    """Outputs that wait are merged, and the request is paused, so that it does not occupy the model."""
    expected = await _tokens(client, _request("quick", LONG))
    async with aclosing(client.submit(_request("slow", LONG))) as outputs:
        tokens = list((await soon(anext(outputs), "the first output of a request")).tokens)

        async def is_still() -> bool:
            info = await _info(client)
            return not (info["running"] or info["waiting"])

        await _until(is_still, f"the pause of a request for {LONG} tokens which nobody reads")
        assert (await _info(client))["paused"] == 1, (
            f"a request for {LONG} tokens which nobody reads was computed to its end; it must be paused"
        )
        await _tokens(client, _request("other", SHORT))
        waiting = await soon(anext(outputs), "the outputs that wait for a slow reader")
        tokens += waiting.tokens
        assert len(waiting.tokens) > READ_AT_ONCE, (
            f"a reader who was slow received {len(waiting.tokens)} tokens; outputs that wait must be merged into one"
        )
        async for output in outputs:
            tokens += output.tokens
    assert tuple(tokens) == expected, "a slow reader received other tokens than a quick one"


async def _check_refusals(client: EngineClient) -> None:
    size = (await _info(client))["vocab_size"]
    await _refused(_outputs(client, _request("refused", 1, (size,))), "a token outside of the vocabulary")
    async with aclosing(client.submit(_request("twice", ENDLESS))) as outputs:
        await soon(anext(outputs), "the first output of a request")
        await _refused(_outputs(client, _request("twice", 1)), "the id of a request in flight")
        await soon(anext(outputs), "another output of a request whose id was used again")
    error = await _refused(client.control("no_such_call"), "an unknown control call")
    assert error.status == 404, f"an unknown control call was refused with status {error.status}, not 404"
    await _until(lambda: _is_idle(client), "the end of refused requests")
    answer = await soon(client.control("flush_cache"), "the control call 'flush_cache'")
    assert answer["success"], "flush_cache did not succeed while no request was in flight"


async def _refused(work: Awaitable[object], what: str) -> RequestError:
    try:
        await soon(work, f"the refusal of {what}")
    except RequestError as error:
        return error
    raise AssertionError(f"{what} was not refused with a RequestError")


async def _check_steps(client: EngineClient) -> None:
    heard: tuple[list[StepStats], list[StepStats]] = ([], [])
    for steps in heard:
        client.on_step(steps.append)
    await _tokens(client, _request("counted", SHORT))

    async def has_all() -> bool:
        return any(_decoded(steps) >= SHORT - 1 for steps in heard)

    await _until(has_all, f"a call of the listener for each of {SHORT} steps")
    assert heard[0] == heard[1], "two listeners heard of different steps"


async def _check_death(client: EngineClient) -> None:
    """Every request and call ends with an error when the engine dies, and none is accepted afterwards."""
    streams = [client.submit(_request(f"last-{number}", ENDLESS)) for number in range(2)]
    for outputs in streams:
        await soon(anext(outputs), "the first output of a request")
    try:
        await soon(asyncio.to_thread(client.kill), "kill()")
    except RuntimeError as error:
        raise AssertionError(f"kill() from another thread than the event loop's raised {error!r}") from error
    for outputs in streams:
        await _fails(_drained(outputs), "a request in flight when kill() was called")
    reason = await soon(client.wait_failed(), "wait_failed() after kill()")
    assert reason and client.failure, "failure must say why the engine cannot serve after kill()"
    await _fails(_outputs(client, _request("late", 1)), "a request to an engine that is gone")
    await _fails(client.control("info"), "a control call to an engine that is gone")


async def _drained(outputs: Any) -> None:
    async for _ in outputs:
        pass


async def _fails(work: Awaitable[object], what: str) -> None:
    try:
        await soon(work, f"the error of {what}")
    except EngineError:
        return
    raise AssertionError(f"{what} did not end with an EngineError")
