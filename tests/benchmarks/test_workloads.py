"""A workload's figures are compared with the bound; failed runs do not count."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.load import Figures, Reply, figures
from benchmarks.models import SHAPES
from benchmarks.probe import Limits
from benchmarks.workloads import WORKS, combine, judge, show

LIMITS = Limits(device="cpu", threads=2, read_bandwidth=40e9, read_method="sum", matmul={"bfloat16": 4e11}, points=())


def found(seconds: float, requests: int, tokens: int, prompt: int, cached: int, error: str = "") -> Figures:
    replies = []
    for _ in range(requests):
        reply = Reply(0.0, finished=seconds, prompt_tokens=prompt, cached_tokens=cached, error=error)
        reply.arrive(1, seconds / 2)
        reply.arrive(tokens, seconds)
        replies.append(reply)
    return figures(replies, 0.0)


def test_the_best_of_all_probes_counts() -> None:
    other = dataclasses.replace(LIMITS, read_bandwidth=50e9, read_method="dot", matmul={"bfloat16": 3e11})
    best = combine([LIMITS, other])
    assert (best.read_bandwidth, best.read_method, best.matmul) == (50e9, "dot", {"bfloat16": 4e11})
    assert combine([other, LIMITS]).matmul == best.matmul


def test_rate_against_bound() -> None:
    measured = judge(SHAPES["0.5B"], "W1", [found(4.0, 1, 128, 128, 0), found(3.2, 1, 128, 128, 0)], LIMITS)
    assert measured.runs == (32.0, 40.0) and measured.unit == "tokens/s"
    assert measured.bound == pytest.approx(47.5, rel=0.01)  # 51.7 while decoding
    assert measured.share == pytest.approx(40.0 / measured.bound)


def test_first_token_against_bound() -> None:
    measured = judge(SHAPES["0.5B"], "W4", [found(10.0, 1, 1, 2048, 0)], LIMITS)
    assert measured.runs == (5.0,) and measured.share == pytest.approx(measured.bound / 5.0)


def test_shared_prefix_is_reported() -> None:
    work = WORKS["W3"]
    hit = found(2.0, work.requests, 16, 1056, 1008)
    measured = judge(SHAPES["1B"], "W3", [hit], LIMITS)
    assert measured.cached_share == pytest.approx(1008 / 1056)
    assert measured.cached_possible == pytest.approx(63 * 1024 / (64 * 1056))
    assert "W3: a prefix computed once" in show([measured])


def test_failed_runs_do_not_count() -> None:
    bad, good = found(0.1, 1, 128, 128, 0, error="lost"), found(4.0, 1, 128, 128, 0)
    assert judge(SHAPES["0.5B"], "W1", [bad, good], LIMITS).runs == (32.0,)
    nothing = judge(SHAPES["0.5B"], "W1", [bad], LIMITS)
    assert nothing.runs == () and "0.5B W1 failed: lost" in show([nothing])
