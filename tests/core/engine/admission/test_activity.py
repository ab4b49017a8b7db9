"""The engine's activity, with a function in place of the device."""

from __future__ import annotations

from sglang_plug import Request, SamplingParams
from sglang_plug.engine.admission.activity import MAX_REQUESTS, activity
from sglang_plug.engine.messages.api_messages import Submit
from tests.core.engine.test_loop import Bench


def request(number: int, *, caller: str = "", tokens: int = 4) -> Submit:
    params = SamplingParams(max_new_tokens=20)
    return Submit(Request(id=f"request-{number}", tokens=tuple([number % 90] * tokens), params=params, caller=caller))


def test_requests_callers_and_slots() -> None:
    bench = Bench(max_queued=10)
    for number, caller in enumerate(("one", "one", "two", "two")):
        bench.loop.handle(request(number, caller=caller))
    for _ in range(3):
        bench.loop.step()
    report = activity(bench.scheduler, bench.loop.requests, [])
    assert report["counts"] == {"running": 2, "waiting": 2, "paused": 0}
    assert [entry["id"] for entry in report["running"]] == ["request-0", "request-1"]
    assert [entry["id"] for entry in report["waiting"]] == ["request-2", "request-3"]
    first, second = report["callers"]
    assert (first["caller"], first["running"], first["open"]) == ("one", 2, 2)
    assert (second["caller"], second["running"], second["open"], second["slots"]) == ("two", 0, 2, 0)
    assert 0 < first["slots"] == report["slots"]["running"] == sum(request["slots"] for request in report["running"])
    owners = ("free", "cached_unused", "cached_in_use", "running")
    assert sum(report["slots"][owner] for owner in owners) == report["slots"]["capacity"]
    assert report["slots"]["cached_in_use"] == sum(
        run["tokens"] for run in report["prefix_cache"]["runs"] if run["locked"]
    )


def test_a_long_queue_is_counted_and_its_beginning_listed() -> None:
    bench = Bench(max_queued=1000)
    for number in range(500):
        bench.loop.handle(request(number, caller=str(number)))
    report = activity(bench.scheduler, bench.loop.requests, [])
    assert report["counts"]["waiting"] == 500 and len(report["waiting"]) == MAX_REQUESTS
    assert report["waiting"][0]["id"] == "request-0" and len(report["callers"]) < 500


def test_held_sequences_wait() -> None:
    bench = Bench(max_queued=10)
    for number in range(2):
        bench.loop.handle(request(number))
    first, second = bench.scheduler.waiting
    bench.scheduler.waiting.remove(second)
    report = activity(bench.scheduler, bench.loop.requests, [second])
    assert report["counts"]["waiting"] == 2 and [entry["id"] for entry in report["waiting"]] == [
        "request-0",
        "request-1",
    ]
