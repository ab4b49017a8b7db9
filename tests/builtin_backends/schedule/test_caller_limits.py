"""Limits for single callers, in an engine loop with a function in place of the model."""

from __future__ import annotations

from sglang_plug.engine.messages.api_messages import Pause
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.schedule.caller_limits import CallerLimits
from tests.core.engine.test_loop import Bench


def test_the_limits_keep_the_contract() -> None:
    check_step_extension(CallerLimits(max_running=2))


def test_one_caller_may_queue_as_many_requests_as_allowed() -> None:
    bench = Bench(max_queued=10, extensions={"limits": CallerLimits(max_waiting=2)})
    for number in range(6):
        bench.submit(f"a{number}", caller="a")
    bench.submit("b0", caller="b")
    bench.run()
    refused = [number for number in range(6) if bench.end(f"a{number}")[1] == 429]
    assert refused == [2, 3, 4, 5], "nothing runs yet when they arrive together"
    assert bench.end("b0")[0] == "length"
    bench.submit("a6", caller="a")
    bench.run()
    assert bench.end("a6")[0] == "length"


def test_running_sequences_do_not_count_as_queued() -> None:
    bench = Bench(max_queued=10, extensions={"limits": CallerLimits(max_waiting=1)})
    for number in range(2):
        bench.submit(f"a{number}", caller="a")
        bench.loop.step()
    bench.submit("a2", caller="a")
    bench.submit("a3", caller="a")
    bench.run()
    assert [bench.end(f"a{number}")[1] for number in range(4)] == [200, 200, 200, 429]


def test_paused_sequences_do_not_count_as_queued() -> None:
    bench = Bench(max_queued=10, extensions={"limits": CallerLimits(max_waiting=1)})
    bench.submit("a0", caller="a")
    bench.loop.step()
    bench.loop.handle(Pause(("a0",)))
    bench.submit("a1", caller="a")
    bench.run()
    assert bench.end("a1")[:2] == ("length", 200)


def test_a_caller_runs_as_many_sequences_as_it_may() -> None:
    bench = Bench(max_queued=10, extensions={"limits": CallerLimits(max_running=1)})
    for number in range(3):
        bench.submit(f"a{number}", caller="a", arrived=1.0)
    bench.submit("b", caller="b", arrived=2.0)
    bench.loop.step()
    while bench.scheduler.busy:
        callers = [sequence.caller for sequence in bench.scheduler.running]
        assert len(set(callers)) == len(callers)
        bench.loop.step()
    assert all(bench.end(id)[0] == "length" for id in ("a0", "a1", "a2", "b"))
