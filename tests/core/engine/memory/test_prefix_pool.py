"""The memory of unused slots of a pool on the host is returned to the operating system."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sglang_plug import KVPool
from sglang_plug.engine.memory.prefix_pool import return_pages


def resident(part: torch.Tensor) -> int:
    """Return the number of bytes of the mapping of ``part`` that are in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        bounds = line.split()[0].split("-")
        if len(bounds) == 2 and int(bounds[0], 16) <= part.data_ptr() < int(bounds[1], 16):
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))
    raise AssertionError("the pool is mapped nowhere")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_pages_go_back_and_their_neighbours_stay() -> None:
    slots = 40_000
    kv = KVPool(
        layers=1, slots=slots, kv_heads=2, dim=64, value_dim=64, dtype=torch.float32, device=torch.device("cpu")
    )
    kv.k[0].fill_(3.0)
    before = resident(kv.k[0])
    returned = return_pages(kv, [(101, 20_000), (30_001, 30_002)])
    assert returned > 15_000 * 512
    assert resident(kv.k[0]) <= before - 15_000 * 512
    assert bool((kv.k[0][:101] == 3).all()) and bool((kv.k[0][20_000:] == 3).all())
    kv.k[0][101:20_000] = 4.0  # the slots can be written as before
    assert float(kv.k[0][10_000, 0, 0]) == 4.0
