"""The benchmark of speculation, on a model that costs nothing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.load import Load
from benchmarks.models import SHAPES
from benchmarks.offline import Choice
from benchmarks.speculation import Bench, measure, show


def test_every_kind_is_measured(tmp_path: Path) -> None:
    choice = Choice(shape=SHAPES["tiny"], dtype="float32", max_total_tokens=512)
    load = Load(url="", requests=2, input_len=8, output_len=40, vocabulary=SHAPES["tiny"].vocabulary)
    found = measure(Bench(choice, tmp_path), load, rounds=1, most=4, step_tokens=32)
    assert list(found) == ["greedy", "loop", "random", "worst"]
    assert all(one.same and one.gain > 0 for one in found.values())
    assert found["loop"].accepted > 40 and found["worst"].proposed > 0 == found["worst"].accepted
    assert len(show(found).splitlines()) == 6
