"""LoRA products in two launches; each row has its own adapter."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug import LowRankTable
from sglang_plug.ops.lora import add_low_rank as add_low_rank_definition
from sglang_plug_backends.triton.kernels.lora import expand_kernel, shrink_kernel

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .launch import launch_options, runs

PROGRAMS = 264
"""Number of concurrent programs, if there is enough work: two for each multiprocessor of a large GPU."""
SHORTEST_SHARE = 512
"""Minimum numbers of a row for a separate program."""
MAX_SPLITS = 16
TILE = 8192
"""Numbers of a matrix that a program holds at once."""
WIDEST_BLOCK = 512


def add_low_rank(x: Tensor, y: Tensor, table: LowRankTable, which: Tensor, *, overlap: bool = False) -> None:
    """Compute the definition; adapters are looked up when the kernels run.

    Raises ``ValueError`` for a ``y`` of another dtype, or with gaps in its rows: it would be captured as it is now.
    """
    if not runs(x, y, which, table.entries):
        add_low_rank_definition(x, y, table, which)
        return
    if y.dtype != x.dtype or y.dtype != table.dtype or y.stride(-1) != 1:
        raise ValueError(
            f"adapters in {table.dtype} cannot be added to a product in {y.dtype}, {tuple(y.stride())} apart, of "
            f"{x.dtype}"
        )
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, size = x.shape
    segments, ranks, part = len(table.segments), table.max_ranks, table.max_part_ranks
    block = max(16, min(WIDEST_BLOCK, TILE // ranks))
    splits = max(1, min(PROGRAMS // rows, size // SHORTEST_SHARE, MAX_SPLITS))
    share = -(-size // (splits * block)) * block
    inner = torch.empty(splits, rows, ranks, dtype=torch.float32, device=x.device)
    columns = max(16, min(WIDEST_BLOCK, TILE // part))
    options = launch_options(x.device, overlap)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        shrink_kernel[(rows, splits)](
            x,
            which,
            table.entries,
            inner,
            rows,
            x.stride(0),
            SIZE=size,
            SEGMENTS=segments,
            SPLITS=splits,
            SHARE=share,
            RANK_BLOCK=ranks,
            BLOCK=block,
            num_warps=4,
            **options,
        )
        expand_kernel[(rows, segments, -(-table.width // columns))](
            inner,
            which,
            table.entries,
            table.scales,
            table.bounds,
            y,
            rows,
            y.stride(0),
            SEGMENTS=segments,
            SPLITS=splits,
            RANK_BLOCK=ranks,
            PART_BLOCK=part,
            COLUMN_BLOCK=columns,
            num_warps=4,
            **options,
        )
