"""Tests of prefill engines and decode engines behind one client, with engines whose failures are scripted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import (
    ConfigError,
    Constraint,
    Finish,
    LogprobOptions,
    Output,
    Request,
    RequestError,
    SamplingParams,
)
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from sglang_plug_api.engine_clients.replicas.paired_group import PairedGroup
from sglang_plug_api.engine_clients.replicas.router import HEARTBEAT_TIMEOUT, POLL_SECONDS

from .scripted_replica import REFUSAL, ScriptedReplica, step
from .test_group import ScriptedPolicy

BLOCK_TOKENS = 4


class PairedReplica(ScriptedReplica):
    """An engine that records requests, and reports that it sends the prompts that it is asked to send."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        transfers: dict[str, str] | None = {"address": f"tcp://engine-{number}"}
        self.values["info"] = {**self.info, "kv_stores": {"block_tokens": BLOCK_TOKENS, "transfers": transfers}}
        self.got: list[Request] = []
        self.refuses: RequestError | None = None
        self.sends = True
        self.cached, self.loaded = 0, tuple[tuple[str, int], ...]()

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.got.append(request)
        if self.refuses is not None:
            raise self.refuses
        if request.transfer is not None and request.transfer.address:
            self.reply = (9,)
        async with contextlib.aclosing(super().submit(request)) as outputs:
            async for output in outputs:
                sends = output.finish is not None and request.transfer is not None and self.sends
                yield replace(output, cached_tokens=self.cached, loaded_tokens=self.loaded, sends_prompt=sends)


class Pairs:
    """A group of two decode engines, 0 and 1, and two prefill engines, 2 and 3; every engine that it has made."""

    def __init__(self, decode: int = 2, prefill: int = 2, max_restarts: int = 3) -> None:
        self.routing, self.prefill_routing, self.now = ScriptedPolicy(), ScriptedPolicy(), 0.0
        self.engines: list[list[PairedReplica]] = [[] for _ in range(decode + prefill)]
        self.closed = 0
        makes = [self._maker(number) for number in range(decode + prefill)]
        self.group = PairedGroup(
            makes[:decode],
            makes[decode:],
            CheckedRouting(self.routing, "the policy"),
            CheckedRouting(self.prefill_routing, "the policy of prompts"),
            max_restarts=max_restarts,
            window=600.0,
            closed=self._close,
            clock=lambda: self.now,
        )

    def _maker(self, number: int) -> Callable[[], PairedReplica]:
        def make() -> PairedReplica:
            self.engines[number].append(PairedReplica(number))
            return self.engines[number][-1]

        return make

    def _close(self) -> None:
        self.closed += 1

    def __getitem__(self, number: int) -> PairedReplica:
        """The newest engine with a number."""
        return self.engines[number][-1]

    @property
    def served(self) -> list[int]:
        """Return the number of requests that each engine received."""
        return [sum(len(engine.got) for engine in engines) for engines in self.engines]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def started(pairs: Pairs) -> Any:
    await pairs.group.start()
    try:
        yield pairs.group
    finally:
        await pairs.group.close()


def request(id: str = "a", tokens: int = 20, **fields: Any) -> Request:
    return Request(id=id, tokens=tuple(range(tokens)), **fields)


async def outputs_of(group: PairedGroup, request: Request) -> list[Output]:
    return [output async for output in group.submit(request)]


async def tokens_of(group: PairedGroup, request: Request) -> list[int]:
    return [token for output in await outputs_of(group, request) for token in output.tokens]


async def test_the_prompt_is_computed_for_the_decode_engine_that_the_policy_chooses() -> None:
    pairs = Pairs()
    async with started(pairs) as group:
        pairs.routing.replica, pairs.prefill_routing.replica = 1, 3
        whole = request(
            params=SamplingParams(max_new_tokens=50, temperature=0.7, seed=3),
            logprobs=LogprobOptions(top=2),
            constraint=Constraint("json", "{}"),
            salt="tenant",
            caller="somebody",
            priority=2,
        )
        assert await tokens_of(group, whole) == [1, 2, 3]
        assert pairs.served == [0, 1, 0, 1]
        (prompt,), (decoded,) = pairs[3].got, pairs[1].got
        assert prompt.transfer is not None and prompt.transfer.address == "tcp://engine-1"
        assert prompt == replace(
            whole,
            params=SamplingParams(max_new_tokens=1, temperature=0.0),
            logprobs=None,
            constraint=None,
            transfer=prompt.transfer,
        )
        assert decoded == replace(whole, transfer=replace(prompt.transfer, address=""))
        await tokens_of(group, whole)
        assert len({got.transfer.id for got in pairs[3].got if got.transfer}) == 2, "ids are never used again"


async def test_cached_tokens_are_those_of_the_engine_that_computed_the_prompt() -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        pairs[0].cached, pairs[0].loaded = 16, (("transfer", 16),)
        pairs[1].cached, pairs[1].loaded = 8, (("disk", 8),)
        outputs = await outputs_of(group, request())
        assert [(output.cached_tokens, output.loaded_tokens) for output in outputs] == [(8, (("disk", 8),))] * 3


async def test_the_decode_engine_waits_for_nothing_that_is_not_sent() -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        pairs[1].sends = False
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert pairs[0].got == [request()]


WITHOUT_PAIR: dict[str, dict[str, Any]] = {
    "a short prompt": {"tokens": BLOCK_TOKENS},
    "images": {"media": (object(),)},
}


@pytest.mark.parametrize("fields", WITHOUT_PAIR.values(), ids=WITHOUT_PAIR.keys())
async def test_some_requests_are_served_by_a_decode_engine_alone(fields: dict[str, Any]) -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        assert await tokens_of(group, request(**fields)) == [1, 2, 3]
        assert pairs.served == [1, 0] and pairs[0].got[0].transfer is None


ONLY_PROMPT: dict[str, dict[str, Any]] = {
    "embedding": {"task": "embed"},
    "one token": {"params": SamplingParams(max_new_tokens=1)},
    "no token": {"params": SamplingParams(max_new_tokens=0)},
    "logprobs of the prompt": {"logprobs": LogprobOptions(start=0)},
}


@pytest.mark.parametrize("fields", ONLY_PROMPT.values(), ids=ONLY_PROMPT.keys())
async def test_requests_that_only_compute_a_prompt_are_served_by_a_prefill_engine(fields: dict[str, Any]) -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        assert await tokens_of(group, request(**fields)) == [1, 2, 3]
        assert pairs.served == [0, 1] and pairs[1].got[0].transfer is None


async def test_another_prefill_engine_takes_the_prompt_of_one_that_dies() -> None:
    pairs = Pairs()
    async with started(pairs) as group:
        pairs[2].may_go_on.clear()
        pairs.prefill_routing.replica = 2
        serving = asyncio.create_task(tokens_of(group, request()))
        await pairs.until(lambda: pairs[2].got)
        pairs[2].die()
        assert await serving == [1, 2, 3]
        assert pairs.served == [1, 0, 1, 1] and pairs[0].got[0].transfer is not None


async def test_a_decode_engine_computes_prompts_when_no_prefill_engine_serves() -> None:
    pairs = Pairs(1, 1, max_restarts=0)
    async with started(pairs) as group:
        pairs[1].may_go_on.clear()
        serving = asyncio.create_task(tokens_of(group, request()))
        await pairs.until(lambda: pairs[1].got)
        pairs[1].die()
        assert await serving == [1, 2, 3] and pairs[0].got == [request()]
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert await tokens_of(group, request(task="embed")) == [1, 2, 3]
        assert pairs.served == [3, 1] and group.failure is None


async def test_a_prefill_engine_serves_requests_when_no_decode_engine_does() -> None:
    pairs = Pairs(1, 1, max_restarts=0)
    async with started(pairs) as group:
        pairs[0].die()
        await pairs.until(lambda: group.replicas[0].failure)
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert pairs.served == [0, 1] and pairs[1].got == [request()]


async def test_prefill_engines_serve_no_requests_that_full_decode_engines_refuse() -> None:
    pairs = Pairs()
    async with started(pairs) as group:
        for number in (0, 1):
            pairs[number].refuses = RequestError("the queue is full", 503)
        with pytest.raises(RequestError, match="the queue is full"):
            await tokens_of(group, request(tokens=2))
        assert [len(pairs[number].got) for number in range(4)] == [1, 1, 0, 0]


async def test_the_prompt_is_sent_again_when_the_decode_engine_dies() -> None:
    pairs = Pairs(2, 1)
    async with started(pairs) as group:
        pairs[0].may_go_on.clear()
        serving = asyncio.create_task(tokens_of(group, request()))
        await pairs.until(lambda: pairs[0].got)
        pairs[0].die()
        assert await serving == [1, 2, 3]
        addresses = [got.transfer.address for got in pairs[2].got if got.transfer]
        assert addresses == ["tcp://engine-0", "tcp://engine-1"]
        received = [got.transfer.id for got in pairs.engines[1][0].got if got.transfer]
        assert received == [pairs[2].got[1].transfer.id if pairs[2].got[1].transfer else ""]


async def test_a_decode_engine_that_was_started_again_has_another_address() -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        pairs[0].die()
        await pairs.until(lambda: len(pairs.engines[0]) == 2 and group.replicas[0].failure is None)
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert pairs[0].got[0].transfer is not None


async def test_a_refused_prompt_is_computed_by_the_decode_engine_which_refuses_for_itself() -> None:
    pairs = Pairs(1, 2)
    async with started(pairs) as group:
        pairs[1].refuses = RequestError("the queue is full", 503)
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert pairs.served == [1, 1, 0] and pairs[0].got == [request()]
        pairs[0].refuses = REFUSAL
        with pytest.raises(RequestError, match="does not fit"):
            await tokens_of(group, request())


async def test_a_silent_prefill_engine_gets_no_prompts() -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        pairs[1].seconds_without_heartbeat, pairs.now = HEARTBEAT_TIMEOUT + 1, POLL_SECONDS
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert pairs.served == [1, 0]


async def test_a_request_is_aborted_where_it_is() -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        pairs[1].may_go_on.clear()
        serving = asyncio.create_task(tokens_of(group, request("prompt")))
        await pairs.until(lambda: pairs[1].requests)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert (pairs[1].aborted, pairs[0].requests) == (["prompt"], [])
        pairs[1].may_go_on.set()
        outputs = group.submit(request("output"))
        await anext(outputs)
        await outputs.aclose()
        assert pairs[0].aborted == ["output"]
        assert await tokens_of(group, request("prompt")) == [1, 2, 3]


async def test_the_load_of_a_decode_engine_counts_while_its_prompt_is_computed() -> None:
    pairs = Pairs(2, 1)
    async with started(pairs) as group:
        pairs[2].may_go_on.clear()
        tasks = [asyncio.create_task(tokens_of(group, request(name))) for name in "ab"]
        await pairs.until(lambda: len(pairs[2].got) == 2)
        pairs[2].may_go_on.set()
        await asyncio.gather(*tasks)
        assert pairs.routing.loads == [[(0, 0, 0), (1, 0, 0)], [(0, 1, 20), (1, 0, 0)]]


async def test_control_calls_reach_engines_of_both_roles_and_status_names_them() -> None:
    pairs = Pairs(1, 2)
    async with started(pairs) as group:
        assert (await group.control("flush_cache"))["success"]
        assert all(pairs[number].controls[-1][0] == "flush_cache" for number in range(3))
        assert {*pairs.prefill_routing.forgotten} == {0, 1, 2}
        assert [status.role for status in group.replicas] == ["decode", "prefill", "prefill"]
        pairs[2].refusals["update_weights"] = REFUSAL
        with pytest.raises(RequestError, match="does not fit"):
            await group.control("update_weights", source="/new")
        assert [call for call in pairs[1].controls if call[0] == "update_weights"] == [
            ("update_weights", {"source": "/new"}),
            ("update_weights", {"source": "/first"}),
        ]
    assert pairs.closed == 1


async def test_a_decode_engine_needs_a_store_that_can_transfer() -> None:
    pairs = Pairs(1, 1)
    for stores in (None, {"block_tokens": 4, "transfers": None}):
        pairs[0].values["info"] = {**pairs[0].info, "kv_stores": stores}
        with pytest.raises(ConfigError, match="'transfer'"):
            await pairs.group.start()


async def test_steps_name_their_engine_and_finished_requests_their_reason() -> None:
    pairs = Pairs(1, 1)
    async with started(pairs) as group:
        replicas = list[int | None]()
        group.on_step(lambda stats: replicas.append(stats.replica))
        for number in (1, 0):
            for listener in pairs[number].listeners:
                listener(step())
        assert replicas == [1, 0]
        assert (await outputs_of(group, request()))[-1].finish == Finish("length")
