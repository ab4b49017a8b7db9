"""Tests of the benchmark of speculation, with a model that takes almost no time."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.models import SHAPES
from benchmarks.load import Load
from benchmarks.offline import Choice
from benchmarks.speculation import Bench, measure, show


def test_every_kind_is_measured(tmp_path: Path) -> None:
    choice = Choice(shape=SHAPES["tiny"], dtype="float32", max_total_tokens=512)
    load = Load(url="", requests=2, input_len=8, output_len=40, vocabulary=SHAPES["tiny"].vocabulary)
    result = measure(Bench(choice, tmp_path), load, rounds=1, max_draft_tokens=4, step_tokens=32)
    assert list(result) == ["greedy", "loop", "random", "worst"]
    assert all(item.same and item.gain > 0 for item in result.values())
    assert result["loop"].accepted > 40 and result["worst"].proposed > 0 == result["worst"].accepted
    assert len(show(result).splitlines()) == 6
