"""Ceilings of a device: rates of copying memory and of multiplying bfloat16 matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

ROUNDS = 20
WARM_UPS = 3


@torch.inference_mode()
def ceilings(device: str) -> dict[str, Any]:
    """Return the copy rate in bytes per second (reads and writes) and the product rate in FLOP/s on random data.

    Medians. Matrices of zeros or ones would multiply faster than any real ones.
    """
    cuda = device.startswith("cuda")
    size = 8192 if cuda else 512
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "copy_bandwidth": copy_bandwidth(device),
        "matmul_rate": _matmul_rate(size, device),
        "matmul_size": size,
    }


@torch.inference_mode()
def copy_bandwidth(device: str) -> float:
    """Return the copy rate in bytes per second (reads and writes); of 4 GiB on a GPU, far more than its caches hold."""
    source = torch.randn(1 << (30 if device.startswith("cuda") else 22), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device)


def _matmul_rate(size: int, device: str) -> float:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2.0 * size**3 / median_seconds(lambda: torch.mm(left, right.T), device)


def median_seconds(action: Callable[[], object], device: str) -> float:
    """Return the median of single calls; on a GPU between events."""
    for _ in range(WARM_UPS):
        action()
    if not device.startswith("cuda"):
        times = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return statistics.median(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        action()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:], strict=False))
