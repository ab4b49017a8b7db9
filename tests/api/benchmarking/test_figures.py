"""Tests of the figures of a benchmark, with requests of known times."""

from __future__ import annotations

import pytest

from sglang_plug import ConfigError
from sglang_plug_api.benchmarking.figures import RequestResult, figures, parse_objectives, percentile, table

QUICK = RequestResult(sent=1.0, arrivals=[1.1, 1.2, 1.3], finished=1.3, prompt_tokens=5, output_tokens=3)
SLOW = RequestResult(sent=1.0, arrivals=[2.0, 2.5], finished=2.5, prompt_tokens=7, output_tokens=6)
FAILED = RequestResult(sent=1.0, finished=1.1, error="status 400: no")


def test_times_are_means_over_successful_requests() -> None:
    result = figures([QUICK, SLOW, FAILED], 2.0, [50], {})
    assert (result["completed"], result["failed"], result["errors"]) == (2, 1, ["status 400: no"])
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (12, 9)
    assert (result["request_throughput"], result["output_throughput"], result["total_token_throughput"]) == (
        1.0,
        4.5,
        10.5,
    )
    assert result["mean_ttft_ms"] == pytest.approx(550)
    assert result["mean_tpot_ms"] == pytest.approx((100 + 100) / 2)
    assert result["median_itl_ms"] == pytest.approx(100)
    assert result["p50_e2el_ms"] == pytest.approx(900)
    assert result["request_goodput"] is None


def test_goodput_counts_the_requests_within_all_limits() -> None:
    limits = parse_objectives(["ttft:200", "e2el:2000"])
    assert figures([QUICK, SLOW, FAILED], 2.0, [], limits)["request_goodput"] == 0.5
    assert figures([QUICK, SLOW], 2.0, [], {"e2el": 2000.0})["request_goodput"] == 1.0


@pytest.mark.parametrize("text", ["ttft", "ttft:fast", "itl:5", "ttft:0", "tpot:nan"])
def test_a_wrong_limit_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--goodput '{text}' is not NAME:MILLISECONDS"):
        parse_objectives([text])


def test_without_successes_times_are_unknown() -> None:
    result = figures([FAILED], 1.0, [99], {"ttft": 1.0})
    assert result["mean_ttft_ms"] is result["p99_itl_ms"] is None
    lines = table(result, [99]).splitlines()
    assert lines[-1] == "failed: status 400: no"
    assert "Mean TTFT (ms):" + "-".rjust(45) in lines


def test_percentiles_are_interpolated() -> None:
    assert [percentile([4.0, 1.0, 2.0], percent) for percent in (0.0, 50.0, 75.0)] == [1.0, 2.0, 3.0]
