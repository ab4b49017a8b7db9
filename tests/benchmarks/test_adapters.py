"""The benchmark of adapters runs, and applies what it says."""

from __future__ import annotations

from benchmarks.adapters import measure, show
from benchmarks.gpu_adapters import ADAPTERS, adapters_are_right
from benchmarks.load import Load
from benchmarks.models import SHAPES
from benchmarks.offline import Choice


def test_each_kind_is_measured() -> None:
    choice = Choice(shape=SHAPES["tiny"], device="cpu", attention="torch", dtype="float32", max_total_tokens=512)
    load = Load(url="", requests=4, input_len=8, output_len=8, vocabulary=512)
    found = measure(choice, load, adapters=3, rank=4)
    assert [(one.kind, one.adapters, one.apart is None) for one in found] == [
        ("not enabled", 0, True),
        ("not used", 0, True),
        ("all the same", 1, False),
        ("every other", 1, False),
        ("mixed", 3, False),
    ]
    assert all(one.step > 0 for one in found)
    assert len(show(found).splitlines()) >= 6


def test_the_check_of_a_device_passes_on_the_host() -> None:
    found = adapters_are_right("cpu", "torch")
    assert found["adapters"] == ADAPTERS and found["worst"] < 1e-4
