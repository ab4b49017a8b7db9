"""The table of targets: its figures, and when a target is met."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common.bounds import Row, bytes_read, flops
from benchmarks.common.models import SHAPES
from benchmarks.gpu.targets import CROWD, LONG_PROMPT, ONE_STREAM, Target, name_of, show, targets

BIG = SHAPES["llama-8B"]


def figure(**changed: Any) -> dict[str, Any]:
    return {"failures": 0, "decode_rate": 100.0, "output_rate": 90.0, "prefill_rate": 1000.0, **changed}


def measurements() -> dict[str, Any]:
    known = ONE_STREAM[1] + ONE_STREAM[2] // 2
    return {
        "ceilings": {"copy_bandwidth": 100 * bytes_read(BIG, [Row(1, known)], 1), "matmul_rate": 1e15},
        "speed llama-8B flashinfer": {
            name_of(ONE_STREAM): figure(decode_rate=80.0),
            name_of(CROWD): figure(decode_rate=21_000.0, output_rate=15_000.0),
            name_of(LONG_PROMPT): figure(prefill_rate=8192.0),
        },
        "prefix llama-8B flashinfer": {"speedup": 6.0},
        "step llama-8B flashinfer": {"host_share": 0.25, "idle_share": 0.2},
        "reference llama-8B": {"output_rate": 6000.0},
    }


def test_figures_and_their_ceilings() -> None:
    rows = {target.work: target for target in targets(measurements(), "flashinfer")}
    limit = rows["llama-8B, one stream, of the bandwidth limit"]
    assert limit.measured == pytest.approx(80.0) and not limit.met  # 100 tokens a second fit the bandwidth
    prefill = rows["llama-8B, 8k-token prefill, of the matmul rate"]
    assert prefill.measured == pytest.approx(100 * flops(BIG, [Row(8192, 0)], 1) / 1e15)
    assert rows["llama-8B, 128 streams, decode"].met
    assert rows["shared 2k prefix, 256 requests, against no prefix cache"].met
    assert rows["host time per decode step at batch 128, of the device's"].met
    assert not rows["idle share of a decode step at batch 128"].met
    assert rows["128 streams against transformers' continuous batching"].measured == pytest.approx(2.5)
    assert "NO" in show(list(rows.values())) and "<= 3" in show(list(rows.values()))


def test_what_was_not_measured_or_failed_is_left_out() -> None:
    assert targets({}, "flashinfer") == []
    assert targets(measurements(), "triton") == []
    part = measurements()
    part["speed llama-8B flashinfer"] = {name_of(CROWD): figure(failures=1)}
    del part["ceilings"]
    assert [target.unit for target in targets(part, "flashinfer")] == ["x", "x", "%"]


def test_met() -> None:
    assert Target("", 3.0, "", 3.0).met and Target("", 3.0, "", 3.0, at_most=True).met
    assert not Target("", 2.9, "", 3.0).met and not Target("", 3.1, "", 3.0, at_most=True).met
