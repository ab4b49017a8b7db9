"""The benchmark of two callers: its report, and a small run with the demo model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.heavy_caller import Round, main, show


def round_of(policy: str, loaded: float, unanswered: int = 0) -> Round:
    return Round(
        policy=policy,
        idle_p99=0.1,
        loaded_median=loaded / 2,
        loaded_p99=loaded,
        unanswered=unanswered,
        step=0.5,
        alone_rate=1000.0,
        loaded_rate=960.0,
    )


def test_the_report_says_whether_the_target_was_met() -> None:
    assert round_of("fair", 0.7).target == pytest.approx(0.8)
    rows = show([round_of("fcfs", 50.0, 2), round_of("fair", 0.7), round_of("fair", 0.9)]).splitlines()
    assert rows[2].split() == ["fcfs", "0.1", "25", "50", "0.8", "2", "0", "of", "1", "96.0", "%"]
    assert rows[3].split()[-6:] == ["0", "1", "of", "2", "96.0", "%"]


def test_a_server_that_computed_nothing_keeps_no_part() -> None:
    nothing = Round(
        policy="fcfs",
        idle_p99=math.nan,
        loaded_median=1.0,
        loaded_p99=1.0,
        unanswered=3,
        step=0.1,
        alone_rate=0.0,
        loaded_rate=0.0,
    )
    assert math.isnan(nothing.kept) and "0 of 1" in show([nothing])


def test_a_small_run_serves_both_callers_with_each_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    sizes = "--prompts 6 --prompt-len 200 --questions 3 --question-len 10 --output-len 3 --limit 120 --vocabulary 512"
    options = ["--shape", "tiny", *sizes.split(), "--json", str(file)]
    main(options)
    printed = capsys.readouterr().out
    assert "fcfs" in printed and "fair" in printed
    results = json.loads(file.read_text())["result"]
    assert [figures["policy"] for figures in results] == ["fcfs", "fair"]
    for figures in results:
        assert figures["unanswered"] == 0 and figures["alone_rate"] > 0 < figures["loaded_rate"]
        assert 0 < figures["idle_p99"] and 0 < figures["loaded_median"] <= figures["loaded_p99"]


def test_a_part_ends_after_its_limit_and_open_questions_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    sizes = "--prompts 2 --prompt-len 20 --questions 2 --question-len 10 --output-len 100000 --limit 1"
    options = ["--policy", "fair", "--shape", "tiny", "--vocabulary", "512", *sizes.split(), "--json", str(file)]
    main(options)
    (figures,) = json.loads(file.read_text())["result"]
    assert figures["alone_rate"] == 0.0, "no output was complete"
