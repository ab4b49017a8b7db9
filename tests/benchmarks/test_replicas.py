"""The benchmark of several engines: its report, and a small run with the smallest shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.replicas import Row, main, show


def row(server: str, *values: float) -> Row:
    return Row(server=server, values=values, unit="tokens/s")


def test_ratios_compare_values_of_the_same_round() -> None:
    assert row("two", 20.0, 30.0, 80.0).ratios(row("one", 10.0, 20.0, 40.0)) == "1.750, 2.000, 2.000"


def test_further_deployments_are_compared_with_two_engines() -> None:
    rows = [row("one engine", 10.0), row("two engines", 20.0), row("two engines, ray", 19.0)]
    lines = show("throughput", rows).splitlines()
    assert lines[3].endswith("2.000, 2.000, 2.000 (to one engine)")
    assert lines[4].endswith("0.950, 0.950, 0.950 (to two engines)")


def test_a_small_run_counts_the_answers_when_an_engine_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    options = ["--shape", "tiny", "--rounds", "1", "--killed-requests", "20", "--part", "kill", "--json", str(file)]
    main(options)
    results = json.loads(file.read_text())["result"]
    assert results["kill"][0]["values"] == [20.0]
    assert "20  of 20 answered" in capsys.readouterr().out
