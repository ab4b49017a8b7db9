"""The benchmark of ranks measures decode steps, on a small model."""

from __future__ import annotations

from benchmarks.common.models import SHAPES
from benchmarks.load import Load
from benchmarks.offline import Choice
from benchmarks.ranks import measure, show


def test_a_small_model() -> None:
    choice = Choice(shape=SHAPES["tiny"], device="cpu", max_total_tokens=200, running=2)
    load = Load(url="", requests=2, input_len=4, output_len=6, vocabulary=choice.shape.vocabulary)
    result = measure(choice, load, ranks=2, executor="threads", rounds=1)
    assert [(item.ranks, item.exchange) for item in result] == [(1, "none"), (2, "sockets"), (2, "shared memory")]
    assert all(item.step > 0 for item in result)
    assert show(result).splitlines()[2].split()[-1] == "1.00"
