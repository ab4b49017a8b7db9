"""A workload's figures are compared with the bound; failed runs do not count."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.common.models import SHAPES
from benchmarks.common.probe import Limits, PackedLimits
from benchmarks.load import Figures, Reply, figures
from benchmarks.workloads import WORKS, Run, between, judge, show

LIMITS = Limits(
    device="cpu",
    threads=2,
    read_bandwidth=40e9,
    read_method="sum",
    matmul={"bfloat16": 4e11},
    packed={32: 2e11, 2048: 4e11},
    points=(),
)


def figures_of(seconds: float, requests: int, tokens: int, prompt: int, cached: int, error: str = "") -> Figures:
    replies = []
    for _ in range(requests):
        reply = Reply(0.0, finished=seconds, prompt_tokens=prompt, cached_tokens=cached, error=error)
        reply.arrive(1, seconds / 2)
        reply.arrive(tokens, seconds)
        replies.append(reply)
    return figures(replies, 0.0)


def test_a_run_is_held_against_the_mean_of_its_probes() -> None:
    other = dataclasses.replace(LIMITS, read_bandwidth=50e9, matmul={"bfloat16": 3e11, "float32": 1e11})
    other = dataclasses.replace(other, packed={32: 3e11, 2048: 3e11})
    mean = between(LIMITS, other)
    assert (mean.read_bandwidth, mean.matmul) == (45e9, {"bfloat16": 3.5e11})
    assert mean.packed == {32: 2.5e11, 2048: 3.5e11}


def test_packed_products_bound_steps_by_their_rows() -> None:
    machine = PackedLimits(LIMITS)
    assert [machine.product_rate(rows) for rows in (1, 32, 2000, 2048, 9000)] == [2e11, 2e11, 2e11, 4e11, 4e11]
    runs = [Run(figures_of(10.0, 32, 64, 128, 0), LIMITS)]
    measured = judge(SHAPES["0.5B"], "W2", runs)
    assert measured.share < measured.packed_share
    long = judge(SHAPES["0.5B"], "W4", [Run(figures_of(10.0, 1, 1, 2048, 0), LIMITS)])
    assert long.share == pytest.approx(long.packed_share)


def test_rate_against_bound() -> None:
    faster = dataclasses.replace(LIMITS, read_bandwidth=80e9)
    runs = [Run(figures_of(4.0, 1, 128, 128, 0), LIMITS), Run(figures_of(3.2, 1, 128, 128, 0), faster)]
    measured = judge(SHAPES["0.5B"], "W1", runs)
    assert measured.runs == (32.0, 40.0) and measured.unit == "tokens/s"
    slow, fast = measured.bounds
    assert slow == pytest.approx(47.5, rel=0.01)  # 51.7 while decoding
    assert measured.share == pytest.approx((32.0 / slow + 40.0 / fast) / 2)


def test_first_token_against_bound() -> None:
    measured = judge(SHAPES["0.5B"], "W4", [Run(figures_of(10.0, 1, 1, 2048, 0), LIMITS)])
    assert measured.runs == (5.0,) and measured.share == pytest.approx(measured.bounds[0] / 5.0)


def test_shared_prefix_is_reported() -> None:
    work = WORKS["W3"]
    hit = figures_of(2.0, work.requests, 16, 1056, 1008)
    measured = judge(SHAPES["1B"], "W3", [Run(hit, LIMITS)])
    assert measured.cached_share == pytest.approx(1008 / 1056)
    assert measured.cached_possible == pytest.approx(63 * 1024 / (64 * 1056))
    assert "W3: a prefix computed once" in show([measured])


def test_failed_runs_do_not_count() -> None:
    bad, good = (
        Run(item, LIMITS) for item in (figures_of(0.1, 1, 128, 128, 0, error="lost"), figures_of(4.0, 1, 128, 128, 0))
    )
    assert judge(SHAPES["0.5B"], "W1", [bad, good]).runs == (32.0,)
    nothing = judge(SHAPES["0.5B"], "W1", [bad])
    assert nothing.runs == () and "0.5B W1 failed: lost" in show([nothing])
