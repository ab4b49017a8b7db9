"""Tests of several engines behind one client, with engines whose failures are scripted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineError, ReplicaLoad, Request, RequestError, StepStats
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from sglang_plug_api.engine_clients.replicas.group import ReplicaGroup
from sglang_plug_api.engine_clients.replicas.router import HEARTBEAT_TIMEOUT, POLL_SECONDS

from .scripted_replica import REFUSAL, ScriptedReplica, step


class ScriptedPolicy:
    """A routing policy that chooses the replica that the test sets, otherwise the first one."""

    def __init__(self) -> None:
        self.replica = 0
        self.loads: list[list[tuple[int, int, int]]] = []
        self.latest: list[dict[int, int | None]] = []
        """For each decision, the capacity that the last step of each replica reported."""
        self.forgotten: list[int] = []

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        self.latest.append({load.replica: load.latest.capacity if load.latest else None for load in replicas})
        self.loads.append([(load.replica, load.requests, load.tokens) for load in replicas])
        numbers = [load.replica for load in replicas]
        return self.replica if self.replica in numbers else numbers[0]

    def forget(self, replica: int) -> None:
        self.forgotten.append(replica)


class Fleet:
    """A group of replicas, and every engine that it has made."""

    def __init__(self, replicas: int = 2, max_restarts: int = 3) -> None:
        self.policy, self.now = ScriptedPolicy(), 0.0
        self.engines: list[list[ScriptedReplica]] = [[] for _ in range(replicas)]
        self.prepare: Callable[[ScriptedReplica], None] = lambda engine: None
        self.group = ReplicaGroup(
            [self._maker(number) for number in range(replicas)],
            CheckedRouting(self.policy, "the policy"),
            max_restarts=max_restarts,
            window=600.0,
            clock=lambda: self.now,
        )

    def _maker(self, number: int) -> Callable[[], ScriptedReplica]:
        def make() -> ScriptedReplica:
            engine = ScriptedReplica(number)
            if self.engines[number]:
                self.prepare(engine)
            self.engines[number].append(engine)
            return engine

        return make

    def __getitem__(self, number: int) -> ScriptedReplica:
        """The newest engine of a replica."""
        return self.engines[number][-1]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def started(fleet: Fleet) -> Any:
    await fleet.group.start()
    try:
        yield fleet.group
    finally:
        await fleet.group.close()


def request(id: str = "a", tokens: int = 5) -> Request:
    return Request(id=id, tokens=tuple(range(tokens)))


async def tokens_of(group: ReplicaGroup, request: Request) -> list[int]:
    return [token async for output in group.submit(request) for token in output.tokens]


async def test_a_request_goes_to_the_replica_that_the_policy_chooses() -> None:
    fleet = Fleet(3)
    async with started(fleet) as group:
        fleet.policy.replica = 2
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert [fleet[number].requests for number in range(3)] == [[], [], ["a"]]


async def test_the_policy_sees_the_load_of_requests_in_flight() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        outputs = group.submit(request("a", tokens=7))
        await anext(outputs)
        await tokens_of(group, request("b"))
        await outputs.aclose()
        await tokens_of(group, request("c"))
        assert fleet.policy.loads == [[(0, 0, 0), (1, 0, 0)], [(0, 1, 8), (1, 0, 0)], [(0, 0, 0), (1, 0, 0)]]
        assert fleet[0].aborted == ["a"]


async def test_an_id_is_unique_over_all_replicas() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        outputs = group.submit(request("a"))
        await anext(outputs)
        fleet.policy.replica = 1
        with pytest.raises(RequestError, match="Duplicate request ID: 'a'"):
            await tokens_of(group, request("a"))
        await outputs.aclose()
        assert await tokens_of(group, request("a")) == [1, 2, 3]


async def test_a_request_without_output_is_served_by_another_replica_when_its_own_dies() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[0].may_go_on.clear()
        serving = asyncio.create_task(tokens_of(group, request()))
        await fleet.until(lambda: fleet[0].requests)
        fleet[0].die()
        assert await serving == [1, 2, 3]
        assert fleet[1].requests == ["a"]
        await fleet.until(lambda: len(fleet.engines[0]) == 2 and group.replicas[0].failure is None)
        assert fleet.policy.forgotten == [0]
        fleet.policy.replica = 0
        assert await tokens_of(group, request("b")) == [1, 2, 3]
        assert fleet[0].requests == ["b"]


async def test_a_request_with_output_ends_with_an_error_that_names_the_replica() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet.policy.replica = 1
        outputs = group.submit(request())
        assert (await anext(outputs)).tokens == (1,)
        fleet[1].die()
        with pytest.raises(EngineError, match="replica 1: signal 9") as error:
            await anext(outputs)
        assert error.value.replica == 1
        assert fleet[0].requests == []


async def test_a_request_that_ends_engines_does_not_end_them_all() -> None:
    fleet = Fleet(4)
    async with started(fleet) as group:
        for number in range(4):
            fleet[number].may_go_on.clear()
        serving = asyncio.create_task(tokens_of(group, request()))
        for number in range(2):
            await fleet.until(lambda number=number: fleet[number].requests)
            fleet[number].die()
        with pytest.raises(EngineError, match="signal 9") as error:
            await serving
        assert error.value.replica is None
        assert fleet[2].requests == fleet[3].requests == []


async def test_a_refused_request_is_not_sent_to_another_replica() -> None:
    fleet = Fleet()
    async with started(fleet) as group:

        async def refuse(request: Request) -> Any:
            raise REFUSAL
            yield

        fleet[0].submit = refuse  # type: ignore[method-assign]
        with pytest.raises(RequestError, match="does not fit"):
            await tokens_of(group, request())
        assert fleet[1].requests == []


async def test_a_request_is_refused_only_if_all_replicas_are_full() -> None:
    fleet = Fleet(3)
    async with started(fleet) as group:
        for number, room in enumerate((2, 0, 1)):
            fleet[number].room = room
            fleet[number].may_go_on.clear()
        serving = [asyncio.create_task(tokens_of(group, request(str(index)))) for index in range(3)]
        await fleet.until(lambda: sum(len(fleet[number].requests) for number in range(3)) == 3)
        assert [fleet[number].requests for number in range(3)] == [["0", "1"], [], ["2"]]
        with pytest.raises(RequestError, match="the queue is full"):
            await tokens_of(group, request("3"))
        for number in range(3):
            fleet[number].may_go_on.set()
        assert await asyncio.gather(*serving) == [[1, 2, 3]] * 3
        assert await tokens_of(group, request("3")) == [1, 2, 3]


async def test_a_full_queue_is_reported_if_the_other_replicas_have_failed() -> None:
    fleet = Fleet(2, max_restarts=0)
    async with started(fleet) as group:
        fleet[0].room = 0
        fleet[1].die()
        await fleet.until(lambda: group.replicas[1].failure)
        with pytest.raises(RequestError, match="the queue is full"):
            await tokens_of(group, request())


async def test_while_no_replica_serves_everybody_is_told_when_to_come_back() -> None:
    fleet = Fleet()
    fleet.prepare = lambda engine: engine.may_start.clear()
    async with started(fleet) as group:
        for number in range(2):
            fleet[number].die()
        expected = "replica 0: signal 9; it is being started again; replica 1: signal 9; it is being started again"
        assert group.failure == expected
        for refused in (tokens_of(group, request()), group.control("info"), group.control("load_adapter", adapter="a")):
            with pytest.raises(EngineError, match="being started again") as error:
                await refused
            assert error.value.retry_after is not None
        await fleet.until(lambda: len(fleet.engines[1]) == 2)
        fleet[1].may_start.set()
        await fleet.until(lambda: group.failure is None)
        assert await tokens_of(group, request()) == [1, 2, 3]


async def test_it_serves_until_the_last_replica_is_given_up() -> None:
    fleet = Fleet(max_restarts=0)
    async with started(fleet) as group:
        failing = asyncio.create_task(group.wait_failed())
        fleet[0].die("signal 6")
        assert await tokens_of(group, request()) == [1, 2, 3]
        assert not failing.done()
        fleet[1].die("signal 7")
        reason = await failing
        assert "replica 0: signal 6" in reason and "replica 1: signal 7" in reason
        with pytest.raises(EngineError) as error:
            await tokens_of(group, request())
        assert error.value.retry_after is None


async def test_a_silent_replica_gets_no_requests_while_another_one_shows_signs_of_life() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[0].seconds_without_heartbeat = HEARTBEAT_TIMEOUT + 1
        await tokens_of(group, request("a"))
        assert fleet[1].requests == ["a"]
        assert group.heartbeat_age == 0.0
        fleet[1].seconds_without_heartbeat = HEARTBEAT_TIMEOUT + 2
        fleet.now += POLL_SECONDS
        await tokens_of(group, request("b"))
        assert fleet[0].requests == ["b"]
        assert group.heartbeat_age == HEARTBEAT_TIMEOUT + 1


async def test_a_failure_that_was_not_noticed_yet_does_not_cost_a_request_one_of_its_attempts() -> None:
    fleet = Fleet(4)
    async with started(fleet) as group:
        await tokens_of(group, request("a"))
        for number in range(3):
            fleet[number].die()
        assert await tokens_of(group, request("b")) == [1, 2, 3]  # before any task could notice
        assert fleet[3].requests == ["b"] and not any("b" in fleet[number].requests for number in range(3))


async def test_control_calls_reach_every_replica() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[0].values["flush_cache"] = {"success": True, "message": "done"}
        fleet[1].values["flush_cache"] = {"success": False, "message": "busy"}
        assert await group.control("flush_cache") == {"success": False, "message": "busy"}
        assert sorted(fleet.policy.forgotten) == [0, 1]
        fleet[0].values["dump"], fleet[1].values["dump"] = {"files": ["a"]}, {"files": ["b"]}
        assert await group.control("dump") == {"files": ["a", "b"]}
        replies = await group.control_each("dump")
        assert [(reply.replica, reply.value) for reply in replies] == [(0, {"files": ["a"]}), (1, {"files": ["b"]})]
        fleet[1].refusals["dump"] = REFUSAL
        with pytest.raises(RequestError, match="does not fit"):
            await group.control("dump")


async def test_a_replica_that_dies_during_a_control_call_is_left_out() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[1].may_answer.clear()
        calling = asyncio.create_task(group.control_each("info"))
        await fleet.until(lambda: fleet[0].controls)
        fleet[1].die()
        assert [reply.replica for reply in await calling] == [0]


async def test_the_state_of_each_replica_has_what_differs() -> None:
    fleet = Fleet()
    await fleet.group.start()
    for number, own in enumerate(({"drafts": {"accepted": 1}}, {"drafts": {"accepted": 2}, "stored": 5})):
        fleet[number].values["info"] = {**fleet[number].info, "same": [1], **own}
    live = await fleet.group.control("info")
    assert (live["same"], live["drafts"]) == ([1], {"accepted": 1})
    assert [state["drafts"]["accepted"] for state in live["replica_states"]] == [1, 2]
    assert [state.get("stored") for state in live["replica_states"]] == [None, 5]
    assert not any("same" in state or "architecture" in state for state in live["replica_states"])
    await fleet.group.close()


async def test_info_has_sums_and_the_state_of_each_replica() -> None:
    fleet = Fleet()
    info = await fleet.group.start()
    assert (info["max_running_requests"], info["max_total_tokens"]) == (8, 1000)
    assert [state["dp_rank"] for state in info["replica_states"]] == [0, 1]
    for number, running in enumerate((3, 4)):
        load = {"running": running, "waiting": number, "slots": {"free": 10, "capacity": 20}, "step_time": number}
        fleet[number].values["info"] = {**fleet[number].info, **load}
    live = await fleet.group.control("info")
    assert (live["running"], live["waiting"], live["slots"]) == (7, 1, {"free": 20, "capacity": 40})
    assert [state["running"] for state in live["replica_states"]] == [3, 4]
    assert [state["step_time"] for state in live["replica_states"]] == [0, 1]
    await fleet.group.close()


async def test_replicas_that_differ_are_refused() -> None:
    fleet = Fleet()
    fleet[1].info["vocab_size"] = 7
    with pytest.raises(ConfigError, match="'vocab_size' is 100 of replica 0 and 7 of replica 1"):
        await fleet.group.start()
    assert fleet[0].closed and fleet[1].closed


async def test_one_that_does_not_start_ends_the_start_of_the_others() -> None:
    fleet = Fleet()
    fleet[0].may_start.clear()
    fleet[1].start_error = ConfigError("no such folder")
    async with asyncio.timeout(60):
        with pytest.raises(ConfigError, match="no such folder"):
            await fleet.group.start()
    assert fleet[0].closed and fleet[1].closed


async def test_step_statistics_name_their_replica() -> None:
    fleet = Fleet()
    steps: list[StepStats] = []
    async with started(fleet) as group:
        group.on_step(steps.append)
        for number in (1, 0):
            for listener in fleet[number].listeners:
                listener(step(running=number + 1))
        assert [(stats.replica, stats.running) for stats in steps] == [(1, 2), (0, 1)]
        fleet[1].die()
        await fleet.until(lambda: len(fleet.engines[1]) == 2 and fleet[1].listeners)
        assert [(stats.replica, stats.running) for stats in steps[2:]] == [(1, 0)]  # not the numbers of its last step
        await fleet.until(lambda: group.replicas[1].failure is None)
        for listener in fleet[1].listeners:
            listener(step(running=9))
        assert (steps[-1].replica, steps[-1].running) == (1, 9)


async def test_the_policy_knows_no_steps_of_an_engine_that_has_died() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        for listener in fleet[0].listeners:
            listener(step(capacity=64))
        await tokens_of(group, request("a"))
        assert fleet.policy.latest[-1] == {0: 64, 1: None}
        fleet[0].die()
        await fleet.until(lambda: len(fleet.engines[0]) == 2 and group.replicas[0].failure is None)
        await tokens_of(group, request("b"))
        assert fleet.policy.latest[-1] == {0: None, 1: None}


UPDATE: dict[str, Any] = {"source": "/new", "revision": None}


async def test_weights_are_updated_on_all_replicas_and_on_one_that_comes_back() -> None:
    fleet = Fleet()
    fleet.prepare = lambda engine: engine.may_start.clear()
    async with started(fleet) as group:
        fleet[1].die()
        await fleet.until(lambda: len(fleet.engines[1]) == 2)
        assert (await group.control("update_weights", **UPDATE))["success"]
        assert fleet[0].controls == [("update_weights", UPDATE)]
        fleet[1].may_start.set()
        await fleet.until(lambda: group.replicas[1].failure is None)
        assert fleet[1].controls == [("update_weights", UPDATE)]


async def test_weights_that_one_replica_refuses_are_used_by_none() -> None:
    fleet = Fleet(3)
    async with started(fleet) as group:
        fleet[1].refusals["update_weights"] = REFUSAL
        with pytest.raises(RequestError, match="does not fit"):
            await group.control("update_weights", **UPDATE)
        undone = [("update_weights", UPDATE), ("update_weights", {"source": "/first"})]
        assert [fleet[number].controls for number in range(3)] == [undone, [], undone]
        del fleet[1].refusals["update_weights"]
        await group.control("update_weights", **UPDATE)
        fleet[2].refusals["update_weights"] = REFUSAL
        with pytest.raises(RequestError):
            await group.control("update_weights", source="/newer", revision=None)
        assert fleet[0].controls[-1] == ("update_weights", UPDATE)


async def test_a_replica_whose_weights_cannot_be_restored_is_started_again() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[0].refusals["update_weights"] = REFUSAL
        second = fleet[1]

        async def once(name: str, **arguments: Any) -> Any:
            second.refusals["update_weights"] = RequestError("the folder is gone")
            del second.control  # type: ignore[method-assign]
            return {"success": True}

        second.control = once  # type: ignore[method-assign]
        with pytest.raises(RequestError, match="does not fit"):
            await group.control("update_weights", **UPDATE)
        assert second.killed
        await fleet.until(lambda: len(fleet.engines[1]) == 2 and group.replicas[1].failure is None)
        assert fleet[1].controls == []


async def test_a_replica_that_dies_of_an_update_undoes_it() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[1].may_answer.clear()
        updating = asyncio.create_task(group.control("update_weights", **UPDATE))
        await fleet.until(lambda: fleet[0].controls)
        fleet[1].die("out of memory")
        with pytest.raises(EngineError, match="replica 1: out of memory"):
            await updating
        assert fleet[0].controls[-1] == ("update_weights", {"source": "/first"})
        await fleet.until(lambda: len(fleet.engines[1]) == 2 and group.replicas[1].failure is None)
        assert fleet[1].controls == []


async def test_a_caller_that_leaves_during_an_update_leaves_equal_replicas() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[1].may_answer.clear()
        updating = asyncio.create_task(group.control("update_weights", **UPDATE))
        await fleet.until(lambda: fleet[0].controls)
        updating.cancel()
        await asyncio.gather(updating, return_exceptions=True)
        late = asyncio.create_task(tokens_of(group, request()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert fleet[0].requests == []  # requests wait until all replicas have the same weights
        fleet[1].may_answer.set()
        assert await late == [1, 2, 3]
        assert fleet[1].controls == [("update_weights", UPDATE)]


async def test_an_adapter_that_one_replica_cannot_load_is_loaded_by_none() -> None:
    fleet = Fleet()
    async with started(fleet) as group:
        fleet[1].refusals["load_adapter"] = REFUSAL
        with pytest.raises(RequestError):
            await group.control("load_adapter", adapter="a", path="/a")
        assert fleet[0].controls[-1] == ("unload_adapter", {"adapter": "a"})
        del fleet[1].refusals["load_adapter"]
        await group.control("load_adapter", adapter="a", path="/a")
        fleet[0].refusals["unload_adapter"] = REFUSAL
        with pytest.raises(RequestError):
            await group.control("unload_adapter", adapter="a")
        assert fleet[1].controls[-1] == ("load_adapter", {"adapter": "a", "path": "/a"})
        fleet[0].die()
        await fleet.until(lambda: len(fleet.engines[0]) == 2 and group.replicas[0].failure is None)
        assert fleet[0].controls == [("load_adapter", {"adapter": "a", "path": "/a"})]


@pytest.mark.parametrize("fault", ["raises", "chooses nobody"])
async def test_a_policy_that_fails_is_replaced_by_the_fewest_tokens(fault: str, caplog: Any) -> None:
    fleet = Fleet()

    def choose(request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        if fault == "raises":
            raise KeyError("no such block")
        return 7

    fleet.policy.choose = choose  # type: ignore[method-assign]
    async with started(fleet) as group:
        outputs = group.submit(request("a"))
        await anext(outputs)
        await tokens_of(group, request("b"))
        await tokens_of(group, request("c"))
        await outputs.aclose()
        assert (fleet[0].requests, fleet[1].requests) == (["a"], ["b", "c"])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the policy" in caplog.text
