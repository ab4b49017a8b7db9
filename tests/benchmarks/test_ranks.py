"""What ranks cost a decode step is measured, on a model that is small."""

from __future__ import annotations

from benchmarks.load import Load
from benchmarks.models import SHAPES
from benchmarks.offline import Choice
from benchmarks.ranks import measure, show


def test_a_small_model() -> None:
    choice = Choice(shape=SHAPES["tiny"], device="cpu", max_total_tokens=200, running=2)
    load = Load(url="", requests=2, input_len=4, output_len=6, vocabulary=choice.shape.vocabulary)
    found = measure(choice, load, ranks=2, executor="threads", rounds=1)
    assert [(one.ranks, one.exchange) for one in found] == [(1, "none"), (2, "sockets"), (2, "shared memory")]
    assert all(one.step > 0 for one in found)
    assert show(found).splitlines()[2].split()[-1] == "1.00"
