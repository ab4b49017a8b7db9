"""Steps that fail at their launch or on the device, while another step is in flight."""

from __future__ import annotations

import pytest

from sglang_plug.engine.execution.pipeline import MAX_CONSECUTIVE_FAILURES

from .pipeline_bench import Bench, expected


def test_a_step_that_breaks_on_the_device_ends_its_requests_and_the_step_ahead_with_them() -> None:
    bench = Bench()
    bench.device.broken = {2}
    bench.submit("a", [1, 2], 9)
    bench.step()
    bench.step()
    assert "step 2 broke" in bench.end("a").message and bench.tokens("a") == expected([1, 2], 1)
    assert not bench.scheduler.busy and not bench.loop.pipeline.in_flight
    bench.submit("b", [1, 2], 9)
    bench.finish()
    assert bench.tokens("b") == expected([1, 2], 9)


def test_a_step_that_cannot_be_queued_ahead_ends_its_requests_after_the_news_of_the_one_before() -> None:
    bench = Bench()
    bench.device.unlaunchable = {3}
    bench.submit("a", [1, 2], 9)
    bench.submit("two", [3, 4], 2)
    bench.step()
    bench.step()
    assert bench.tokens("a") == expected([1, 2], 2) and bench.end("two").reason == "length"
    bench.step()
    assert bench.end("a").status == 500 and "no memory for 3" in bench.end("a").message


def test_steps_that_keep_breaking_end_the_engine() -> None:
    bench = Bench()
    bench.device.broken = set(range(100))
    for number in range(MAX_CONSECUTIVE_FAILURES - 1):
        bench.submit(str(number), [1, 2], 9)
        bench.step()
    bench.submit("last", [1, 2], 9)
    with pytest.raises(RuntimeError, match="broke"):
        bench.step()


def test_a_bad_row_ends_alone() -> None:
    bench = Bench()
    bench.device.bad_rows = {(3, "a")}
    bench.submit("a", [1, 2], 9)
    bench.submit("b", [3, 4], 9)
    bench.finish()
    assert bench.end("a").message == "not finite" and bench.tokens("a") == expected([1, 2], 2)
    assert bench.tokens("b") == expected([3, 4], 9)
