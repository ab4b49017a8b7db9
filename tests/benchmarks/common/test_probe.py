"""The probe measures the right quantities, on a small scale."""

from __future__ import annotations

import torch

from benchmarks.common.probe import probe, show


def test_limits_are_the_best_points() -> None:
    limits = probe(rounds=2, gibibytes=1 / 32, rows=(1, 4), dtypes=(torch.float32,))
    reads = {point.name: point for point in limits.points if point.unit == "B/s"}
    counted = [read_call.best for name, read_call in reads.items() if not name.startswith("copy")]
    assert limits.read_bandwidth == max(counted) == reads[limits.read_method].best
    products = [point for point in limits.points if point.unit == "FLOP/s"]
    assert limits.matmul == {"float32": max(product.best for product in products)}
    assert {product.name.split(", ")[1] for product in products} == {"1 rows", "4 rows"}
    assert all(point.best >= point.median > 0 for point in limits.points)
    assert limits.read_method in show(limits)
