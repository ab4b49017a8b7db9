"""The benchmark of adapters runs and applies the adapters it names."""

from __future__ import annotations

from benchmarks.adapters import measure, show
from benchmarks.common.models import SHAPES
from benchmarks.gpu.adapters import ADAPTERS, adapters_are_right
from benchmarks.load import Load
from benchmarks.offline import Choice


def test_each_kind_is_measured() -> None:
    choice = Choice(shape=SHAPES["tiny"], device="cpu", attention="torch", dtype="float32", max_total_tokens=512)
    load = Load(url="", requests=4, input_len=8, output_len=8, vocabulary=512)
    result = measure(choice, load, adapters=3, rank=4)
    assert [(item.kind, item.adapters, item.apart is None) for item in result] == [
        ("not enabled", 0, True),
        ("not used", 0, True),
        ("all the same", 1, False),
        ("every other", 1, False),
        ("mixed", 3, False),
    ]
    assert all(item.step > 0 for item in result)
    assert len(show(result).splitlines()) >= 6


def test_the_check_of_a_device_passes_on_the_host() -> None:
    result = adapters_are_right("cpu", "torch")
    assert result["adapters"] == ADAPTERS and result["worst"] < 1e-4
