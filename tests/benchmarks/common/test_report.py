"""Percentiles, ratios, tables and JSON of the benchmarks."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.report import Summary, percentile, plain, ratio, table, write_json


def test_percentile_interpolates() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([10.0, 20.0, 30.0], 0.0) == 10.0
    assert percentile([10.0, 20.0, 30.0], 1.0) == 30.0
    assert percentile([10.0, 20.0, 30.0], 0.75) == 25.0
    assert percentile(range(101), 0.95) == pytest.approx(95.0)
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize("share", [-0.1, 1.1, 95.0])
def test_percentile_wants_a_share(share: float) -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        percentile([1.0], share)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentile_agrees_with_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for hundredths in (50, 95, 99):
        assert percentile(values, hundredths / 100) == pytest.approx(cuts[hundredths - 1], abs=1e-6)


def test_ratio() -> None:
    assert ratio(30.0, 40.0) == 0.75
    assert math.isnan(ratio(1.0, 0.0))


def test_summary() -> None:
    result = Summary.of([3.0, 1.0, 2.0])
    assert (result.count, result.mean, result.p50, result.best) == (3, 2.0, 2.0, 1.0)
    empty = Summary.of([])
    assert empty.count == 0 and math.isnan(empty.mean) and math.isnan(empty.p99)


def test_table_aligns() -> None:
    lines = table(("what", "rate"), [("short", 1.23456), ("a longer name", 12345.6), ("none", math.nan)]).splitlines()
    assert lines[0].split() == ["what", "rate"]
    assert [line.split()[-1] for line in lines[2:]] == ["1.235", "12,346", "-"]
    assert len({len(line) for line in lines}) == 1


@dataclass
class _Nested:
    values: tuple[float, ...]


def test_json_holds_plain_data(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.json"
    write_json(file, {"nested": _Nested((1.0, math.nan, math.inf)), "path": 3})
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["result"] == {"nested": {"values": [1.0, None, None]}, "path": 3}
    assert written["machine"]["cores"] >= 1
    assert plain([_Nested((2.0,))]) == [{"values": [2.0]}]
    write_json(None, object())
