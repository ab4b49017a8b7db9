"""The probe measures what it says, in small."""

from __future__ import annotations

import torch

from benchmarks.probe import probe, show


def test_limits_are_the_best_points() -> None:
    limits = probe(rounds=2, gibibytes=1 / 32, rows=(1, 4), dtypes=(torch.float32,))
    reads = {one.name: one for one in limits.points if one.unit == "B/s"}
    counted = [one.best for name, one in reads.items() if not name.startswith("copy")]
    assert limits.read_bandwidth == max(counted) == reads[limits.read_method].best
    products = [one for one in limits.points if one.unit == "FLOP/s"]
    assert limits.matmul == {"float32": max(one.best for one in products)}
    assert {one.name.split(", ")[1] for one in products} == {"1 rows", "4 rows"}
    assert all(one.best >= one.median > 0 for one in limits.points)
    assert limits.read_method in show(limits)
