"""Bounds computed by hand, and general properties."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.bounds import Row, bytes_read, flops, run_seconds, step_seconds
from benchmarks.common.models import BYTES, SHAPES

SHAPE = SHAPES["0.5B"]


@dataclass
class Machine:
    read_bandwidth: float = 40e9
    rate: float = 400e9

    def product_rate(self, rows: int) -> float:
        return self.rate


def test_decoding_one_stream_reads_the_weights() -> None:
    weights = SHAPE.matmul_weights * BYTES
    assert bytes_read(SHAPE, [Row(1, 100)], 1) == weights + 100 * SHAPE.kv_bytes
    assert step_seconds(SHAPE, Machine(), [Row(1, 0)], 1) == pytest.approx(weights / 40e9)
    tokens_per_second = 1 / step_seconds(SHAPE, Machine(read_bandwidth=34e9), [Row(1, 128)], 1)
    assert tokens_per_second == pytest.approx(44, rel=0.02)


def test_a_long_prompt_multiplies() -> None:
    rows = [Row(2048, 0)]
    matrices = 2.0 * SHAPE.layers * SHAPE.layer_weights * 2048 + 2.0 * SHAPE.head_weights
    attention = 4.0 * SHAPE.layers * SHAPE.heads * SHAPE.dim * (2048 * 2049 / 2)
    assert flops(SHAPE, rows, 1) == matrices + attention
    assert step_seconds(SHAPE, Machine(), rows, 1) == pytest.approx((matrices + attention) / 400e9)
    min_seconds = run_seconds(SHAPE, Machine(), requests=1, input_len=2048, output_len=1)
    assert 3.4 < min_seconds < 4.2


def test_attention_is_the_same_in_chunks() -> None:
    whole = flops(SHAPE, [Row(300, 0)], 0)
    assert flops(SHAPE, [Row(100, 0)], 0) + flops(SHAPE, [Row(200, 100)], 0) == pytest.approx(whole)


def test_a_shared_prefix_is_computed_and_read_once() -> None:
    rows = [Row(1, 1000, 900)] * 8
    assert bytes_read(SHAPE, rows, 8) - SHAPE.matmul_weights * BYTES == (900 + 8 * 100) * SHAPE.kv_bytes
    shared = run_seconds(SHAPE, Machine(), requests=64, input_len=32, output_len=16, shared=1024)
    apart = run_seconds(SHAPE, Machine(), requests=64, input_len=1056, output_len=16)
    assert shared < apart / 10


@given(st.integers(1, 64), st.integers(1, 512), st.integers(1, 32), st.integers(0, 512))
def test_more_work_never_takes_less(requests: int, prompt: int, output: int, shared: int) -> None:
    def min_seconds(more: int = 0, machine: Machine | None = None, **changed: int) -> float:
        sizes = {"requests": requests, "input_len": prompt, "output_len": output, "shared": shared, **changed}
        return run_seconds(SHAPE, machine or Machine(), **sizes)

    base = min_seconds()
    assert min_seconds(requests=requests + 1) >= base
    assert min_seconds(output_len=output + 1) > base
    assert min_seconds(input_len=prompt + 64) >= base
    assert min_seconds(machine=Machine(80e9, 800e9)) == pytest.approx(base / 2)
