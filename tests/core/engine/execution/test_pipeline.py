"""Steps that are launched while the previous one is on the device: their order, and outputs as without overlap."""

from __future__ import annotations

import pytest

from sglang_plug import Finish, LogprobOptions, Request, SamplingParams
from sglang_plug.engine.execution.pipeline import Pipeline
from sglang_plug.engine.messages.api_messages import Abort, Control, Reply, StepOutputs
from sglang_plug.engine.scheduling.scheduler import MAX_OVERLAPPED_STEPS
from sglang_plug.engine.sequences.launched_step import DeferredSampling, LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.prefix_cache.none import NoCache
from tests.core.engine.scheduling.scheduler_bench import STOP

from .pipeline_bench import WIDTH, Bench, expected, follow, prompt_that_stops, under_grammar


def test_each_step_is_launched_before_the_one_ahead_of_it_is_read() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 4)
    bench.finish()
    assert bench.device.log == [
        *("launch 1", "launch 2", "results 1"),
        *("launch 3", "results 2", "launch 4", "results 3", "results 4"),
    ]
    assert bench.tokens("a") == expected([1, 2], 4)


def test_one_by_one_without_overlap() -> None:
    bench = Bench(overlap=False)
    bench.submit("a", [1, 2], 3)
    bench.finish()
    assert bench.device.log == [f"{event} {number}" for number in (1, 2, 3) for event in ("launch", "results")]


def test_what_ends_by_its_limit_has_no_row_ahead() -> None:
    bench = Bench()
    bench.submit("short", [1, 2], 2)
    bench.submit("long", [3, 4], 4)
    bench.finish()
    assert bench.device.launched_ids == [["short", "long"], ["short", "long"], ["long"], ["long"]]


def test_what_a_stop_token_ends_has_a_row_that_is_dropped() -> None:
    bench = Bench()
    prompt = prompt_that_stops(3)
    bench.submit("stops", prompt, 30, stops=(STOP,))
    bench.submit("long", [3, 4], 6)
    bench.finish()
    assert [row.count("stops") for row in bench.device.launched_ids] == [1, 1, 1, 1, 0, 0]
    assert bench.tokens("stops") == expected(prompt, 3)
    assert bench.end("stops") == Finish("stop", matched=STOP)
    updates = [message for message in bench.sent if isinstance(message, StepOutputs) and message.stats is not None]
    assert [step.stats.decode_sequences for step in updates if step.stats] == [0, 2, 2, 1, 1, 1]


def test_a_step_that_nobody_wants_is_not_waited_for() -> None:
    bench = Bench()
    prompt = prompt_that_stops(3)
    bench.submit("stops", prompt, 30, stops=(STOP,))
    bench.finish()
    assert bench.device.log[-2:] == ["launch 4", "results 3"]
    bench.submit("next", prompt, 3)
    bench.finish()
    assert bench.tokens("next") == expected(prompt, 3)


def test_an_abort_while_a_step_is_on_the_device() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.submit("b", [3, 4], 8)
    bench.step()
    bench.step()
    bench.inbox.messages.append(Abort(("a",)))
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 2) and bench.end("a").reason == "abort"
    assert bench.tokens("b") == expected([3, 4], 8)


def test_an_abort_of_the_only_request_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    bench.inbox.messages.append(Abort(("a",)))
    bench.step()
    assert not bench.loop.pipeline.in_flight and not bench.scheduler.busy
    bench.submit("a", [1, 2], 3)
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 1) + expected([1, 2], 3)


def test_an_arrival_does_not_wait_for_a_step_that_an_abort_left_alone() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    bench.inbox.messages.append(Abort(("a",)))
    bench.submit("b", [3, 4], 3)
    bench.finish()
    assert bench.device.log[:5] == ["launch 1", "launch 2", "results 1", "launch 3", "launch 4"]
    assert bench.tokens("b") == expected([3, 4], 3)


def test_the_id_of_a_request_that_ended_may_be_used_at_once() -> None:
    bench = Bench()
    prompt = prompt_that_stops(2)
    bench.submit("a", prompt, 30, stops=(STOP,))
    bench.submit("b", [5], 12)
    while not any(output.id == "a" and output.finish for output in bench.outputs()):
        bench.step()
    bench.submit("a", [9, 9], 4)
    bench.finish()
    assert bench.tokens("a") == expected(prompt, 2) + expected([9, 9], 4)


@pytest.mark.parametrize("drained", [False, True])
def test_an_arrival_is_computed_in_the_step_after_the_one_on_the_device(drained: bool) -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    if drained:
        bench.inbox.messages.append(Control(1, "check", {}))
    bench.step()
    launches = bench.device.launches
    assert bench.loop.pipeline.in_flight
    bench.submit("b", [3, 4], 5)
    bench.step()
    assert bench.device.launches == launches, "the step after it was planned before the arrival had a chance"
    bench.step()
    assert bench.device.launched_ids[launches] == ["a", "b"]
    bench.finish()


def test_a_full_house_does_not_stop_it() -> None:
    bench = Bench(max_running=2)
    for id in ("a", "b", "c"):
        bench.submit(id, [ord(id)], 20)
    for _ in range(5):
        bench.step()
    assert bench.device.launches == 6
    bench.finish()
    assert bench.tokens("c") == expected([ord("c")], 20)


def test_the_slot_of_one_that_ends_by_its_limit_is_taken_at_once() -> None:
    bench = Bench(max_running=2)
    for id, count in (("a", 3), ("b", 20), ("c", 20)):
        bench.submit(id, [ord(id)], count)
    bench.finish()
    assert bench.device.launched_ids[:4] == [["a", "b"], ["a", "b"], ["a", "b"], ["b", "c"]]


def test_those_that_found_no_room_are_looked_at_again() -> None:
    bench = Bench(capacity=40, cache=NoCache)
    bench.submit("a", [1] * 5, 30)
    bench.step()
    bench.submit("b", [2] * 20, 3)
    plans = 0
    plan = bench.scheduler.plan

    def counted() -> list[ScheduledChunk]:
        nonlocal plans
        plans += 1
        return plan()

    bench.scheduler.plan = counted  # type: ignore[method-assign]
    for _ in range(2 * MAX_OVERLAPPED_STEPS + 4):
        bench.step()
    assert plans == 3 and bench.tokens("b") == []
    bench.finish()
    assert bench.tokens("b") == expected([2] * 20, 3)


def test_a_control_call_finds_nothing_on_the_device() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    assert bench.loop.pipeline.in_flight
    bench.inbox.messages.append(Control(1, "check", {}))
    bench.step()
    assert bench.device.log[:4] == ["launch 1", "launch 2", "results 1", "results 2"]
    (reply,) = [message for message in bench.sent if isinstance(message, Reply)]
    index = bench.sent.index(reply)
    before = [
        output for message in bench.sent[:index] if isinstance(message, StepOutputs) for output in message.outputs
    ]
    assert [len(output.tokens) for output in before] == [1, 1]
    assert reply.value["running"] + reply.value["cached"] == 3
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 30)


@pytest.mark.parametrize("how", ["pooled", "constrained and reported", "prompt reported"])
def test_what_is_known_too_late_is_not_launched_ahead(how: str) -> None:
    bench = Bench()
    fields = {"task": "embed"} if how == "pooled" else {"logprobs": LogprobOptions(start=0)}
    prompt = range(20) if how == "prompt reported" else range(3)
    request = Request(id="a", tokens=tuple(prompt), params=SamplingParams(max_new_tokens=4), **fields)
    sequence = Sequence.of(request, WIDTH)
    if how == "constrained and reported":
        sequence.sampling.constrained = True
    bench.scheduler.add(sequence)
    chunks = bench.scheduler.plan()
    assert bench.scheduler.plan_ahead(chunks) == []


def test_constrained_tokens_are_chosen_once_those_before_are_committed() -> None:
    bench = Bench()
    prompt = next(
        [n] for n in range(100) if all(not result.forced for result in follow([n], 4)) and len(follow([n], 4)) == 4
    )
    bench.submit("a", prompt, 4, constrained=True)
    bench.submit("free", [3, 4], 4)
    bench.finish()
    assert bench.device.log == [
        *("launch 1", "launch 2", "results 1", "sample 2"),
        *("launch 3", "results 2", "sample 3", "launch 4", "results 3", "sample 4", "results 4"),
    ]
    assert bench.tokens("a") == under_grammar(prompt, 4) and bench.tokens("free") == expected([3, 4], 4)


def test_what_must_follow_a_token_comes_before_what_the_step_ahead_would_choose() -> None:
    bench = Bench()
    prompt = next([n] for n in range(100) if [len(result.forced) for result in follow([n], 12)][:2] == [0, 2])
    bench.submit("a", prompt, 12, constrained=True)
    bench.submit("free", [3, 4], 12)
    bench.finish()
    assert bench.tokens("a") == under_grammar(prompt, 12)
    assert bench.tokens("free") == expected([3, 4], 12)
    assert bench.device.launched_ids[:4] == [["a", "free"]] * 4
    assert bench.device.log[:9] == [
        *("launch 1", "launch 2", "results 1", "sample 2"),
        *("launch 3", "results 2", "sample 3", "launch 4", "results 3"),
    ]


def test_the_chunks_of_a_prompt_are_launched_ahead() -> None:
    bench = Bench(chunk_size=4)
    bench.submit("a", range(10), 3)
    bench.finish()
    assert bench.device.log[:6] == ["launch 1", "launch 2", "results 1", "launch 3", "results 2", "launch 4"]
    assert bench.tokens("a") == expected(list(range(10)), 3)
    updates = [message for message in bench.sent if isinstance(message, StepOutputs) and message.stats is not None]
    assert [step.stats.prefill_tokens for step in updates if step.stats] == [4, 4, 2, 0, 0]
    assert [step.stats.decode_sequences for step in updates if step.stats] == [0, 0, 0, 1, 1]


def test_chunks_leave_their_budget_to_those_that_decode() -> None:
    bench = Bench(chunk_size=4)
    bench.submit("a", [1, 2], 9)
    bench.step()
    bench.submit("b", range(10), 3)
    counts: list[list[int]] = []
    launch = bench.device.launch

    def watched(chunks: list[ScheduledChunk], before: LaunchedStep | None = None) -> LaunchedStep | DeferredSampling:
        counts.append([chunk.count for chunk in chunks])
        return launch(chunks, before)

    bench.device.launch = watched  # type: ignore[method-assign]
    bench.finish()
    assert counts[:5] == [[1, 3], [1, 3], [1, 3], [1, 1], [1, 1]]
    assert bench.tokens("a") == expected([1, 2], 9) and bench.tokens("b") == expected(list(range(10)), 3)


def test_a_step_without_some_of_the_running_sequences_is_followed_by_another_plan() -> None:
    bench = Bench()
    for id in ("a", "b"):
        bench.scheduler.add(Sequence.of(Request(id=id, tokens=(1, 2), params=SamplingParams()), WIDTH))
    chunks = bench.scheduler.plan()
    assert bench.scheduler.plan_ahead(chunks[:1]) == []
    assert len(bench.scheduler.plan_ahead(chunks)) == 2


def test_nothing_is_evicted_or_retracted_ahead() -> None:
    bench = Bench(capacity=12)
    bench.submit("old", [9] * 6, 1)
    bench.finish()
    assert bench.scheduler.cache.size == 6
    bench.submit("a", [1, 2], 7)
    bench.step()
    bench.step()
    assert bench.device.launches == 1 + 3
    while bench.scheduler.pool.free:
        bench.step()
    launches, cached = bench.device.launches, bench.scheduler.cache.size
    bench.step()
    assert bench.device.launches == launches and bench.scheduler.cache.size == cached
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 7)


def test_the_watchdog_sees_who_waits_for_results() -> None:
    bench = Bench()
    busy: list[float] = []
    bench.device.while_waited = lambda: busy.append(bench.loop.heartbeat.busy_for)
    bench.submit("a", [1, 2], 4)
    bench.finish()
    assert len(busy) == 4 and min(busy) > 0 and bench.loop.heartbeat.busy_for == 0


def test_slots_that_the_cache_replaces_are_noticed() -> None:
    """Two prompts that are too short to wait for each other compute the same pages; one set of pages is freed."""
    bench = Bench()
    bench.submit("a", [1, 2, 3, 4], 6)
    bench.submit("b", [1, 2, 3, 4], 6)
    bench.inbox.messages.append(Control(1, "info", {}))
    bench.step()
    first, second = bench.scheduler.running
    assert first.slots[:4] == second.slots[:4]
    assert (first.slot_version, second.slot_version) == (0, 1)
    bench.finish()
    assert bench.tokens("a") == bench.tokens("b") == expected([1, 2, 3, 4], 6)


def test_a_pipeline_without_work_does_nothing() -> None:
    bench = Bench()
    pipeline: Pipeline = bench.loop.pipeline
    assert pipeline.step() == [] and not pipeline.in_flight
