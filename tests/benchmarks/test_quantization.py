"""Tests of the benchmark of quantization formats, with a model that takes almost no time."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.common.models import SHAPES, write_model
from benchmarks.quantization import FORMATS, Bench, measure


def test_every_format_is_measured_at_every_size() -> None:
    with torch.inference_mode():
        result = measure("tiny", list(FORMATS), [1, 3], blocks=2, count=2)
    assert [(item.format, item.batch) for item in result] == [(name, batch) for batch in (1, 3) for name in FORMATS]
    assert all(0 < item.best <= item.middle for item in result)
    assert [item.times_as_fast for item in result if item.format == "bfloat16"] == [1, 1]


def test_engines_are_in_the_formats_they_are_named_after(tmp_path: Path) -> None:
    path = write_model(SHAPES["tiny"], tmp_path)
    assert {name: Bench(path, how).loop.info["quantization"] for name, how in FORMATS.items()} == {
        "bfloat16": None,
        "int8": "int8",
        "int8 with head": "int8",
        "4 bits, groups of 128": "gptq",
        "4 bits, groups of 32": "gptq",
        "8 bits, groups of 128": "gptq",
        "e4m3, blocks of 128": "fp8",
    }
