"""Matrices for one row: on a GPU by a kernel, with the sizes that were the fastest there, if it beats the library.

One sequence that decodes reads each matrix for one row. How much of the memory's bandwidth the library reaches then
depends on the shape, so it is measured once for each shape, when the weights are there.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.kernels import LinearFunction

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .kernels_row import row_kernel
from .launch import launch_options

logger = logging.getLogger(__name__)

WORTH = 0.97
"""The kernel is taken if it needs at most this share of the library's time."""
LAUNCHES, REPEATS = 16, 5
"""Products that are timed together, and how often."""
SECTORS_OF_THREAD = 4
"""What a thread asks for of its program's rows before it may read: all that a device has come to at most 35 MB."""
CACHES = 3
"""The matrices that are timed in turns are as large as so many second-level caches."""
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Sizes of one program's work."""

    rows: int
    columns: int
    """Read at once from each row, a power of two as the rows are."""
    warps: int
    """Of 32 threads."""
    stages: int = 1
    """Blocks of ``columns`` on their way from memory; more than one go through shared memory."""


TILES = (
    Tiles(rows=4, columns=512, warps=4),
    Tiles(rows=2, columns=1024, warps=4),
    Tiles(rows=8, columns=512, warps=8),
    Tiles(rows=16, columns=256, warps=4),
    Tiles(rows=4, columns=1024, warps=8),
    Tiles(rows=4, columns=512, warps=4, stages=3),
    Tiles(rows=2, columns=1024, warps=4, stages=4),
)
"""What is tried. Each is compiled once for all shapes, as these are no constants of the kernel."""
Time = Callable[[Ordered[Callable[[], Tensor]]], float]
"""Seconds that each of some products takes, in turns."""


class RowProducts:
    """Packs matrices, and remembers which tiles are the best for their shapes.

    Args:
        silu_mul: see ``Kernels.silu_mul``.
        time: how products are timed; on a GPU by default.
        overlap: let each kernel start while the one before it ends.
    """

    def __init__(
        self, silu_mul: Callable[[Tensor], Tensor], time: Time | None = None, *, overlap: bool = False
    ) -> None:
        self._silu_mul, self._time, self._overlap = silu_mul, time, overlap
        self._found: dict[tuple[torch.Size, torch.dtype, bool, bool], Tiles | None] = {}

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> LinearFunction:
        """See ``Kernels.pack_linear``."""
        return self._pack(weight, bias, gated=False)

    def pack_gated(self, weight: Tensor, bias: Tensor | None) -> LinearFunction:
        """See ``Kernels.pack_gated``."""
        return self._pack(weight, bias, gated=True)

    def _pack(self, weight: Tensor, bias: Tensor | None, *, gated: bool) -> LinearFunction:
        many = self._many(weight, bias, gated=gated)
        if weight.dtype not in HALF or not weight.is_contiguous() or not (weight.is_cuda or self._time):
            return many
        kind = weight.shape, weight.dtype, gated, bias is not None
        if kind not in self._found:
            self._found[kind] = self._best(weight, bias, gated=gated)
        tiles = self._found[kind]
        if tiles is None:
            return many
        one = partial(multiply_row, weight, bias, gated=gated, tiles=tiles, overlap=self._overlap)
        return partial(_multiply, weight.dtype, one, many)

    def _many(self, weight: Tensor, bias: Tensor | None, *, gated: bool) -> LinearFunction:
        """By the library, for any number of rows."""
        if gated:
            return lambda x: self._silu_mul(F.linear(x, weight, bias))
        return lambda x: F.linear(x, weight, bias)

    @torch.inference_mode()
    def _best(self, weight: Tensor, bias: Tensor | None, *, gated: bool) -> Tiles | None:
        """The tiles that are clearly faster than the library; ``None`` if none are, or if that cannot be measured."""
        time = seconds_each if self._time is None else self._time
        try:
            x = torch.randn(1, weight.shape[1], device=weight.device, dtype=weight.dtype)
            copies = [weight, *(weight.clone() for _ in range(_copies(weight) - 1))]
            library = time([partial(self._many(one, bias, gated=gated), x) for one in copies])
            times = dict(self._timed(time, copies, bias, x, gated))
        except torch.cuda.OutOfMemoryError:
            return None
        best = min(times, key=times.__getitem__, default=None)
        share = None if best is None else times[best] / library
        logger.info(
            "Products of one row with a matrix of %d x %d%s: by the library %.1f us, by the best kernel %s",
            *weight.shape,
            ", gated" if gated else "",
            1e6 * library,
            "none" if best is None else f"{1e6 * times[best]:.1f} us ({best})",
        )
        return best if share is not None and share <= WORTH else None

    def _timed(
        self, time: Time, copies: Ordered[Tensor], bias: Tensor | None, x: Tensor, gated: bool
    ) -> Iterator[tuple[Tiles, float]]:
        for tiles in TILES:
            products = [
                partial(multiply_row, one, bias, x, gated=gated, tiles=tiles, overlap=self._overlap) for one in copies
            ]
            try:
                yield tiles, time(products)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # a device that lacks what it needs says so in many ways
                logger.debug("%s cannot be used: %s: %s", tiles, type(error).__name__, error)


def multiply_row(
    weight: Tensor, bias: Tensor | None, x: Tensor, *, gated: bool, tiles: Tiles, overlap: bool = False
) -> Tensor:
    """``F.linear(x, weight, bias)`` of ``x`` ``[1, in]``, or ``silu(gate) * up`` of its halves; rounded once."""
    rows, size = weight.shape
    rows = rows // 2 if gated else rows
    out = x.new_empty(1, rows)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        row_kernel[(-(-rows // tiles.rows),)](
            x,
            weight,
            weight if bias is None else bias,
            out,
            rows,
            size,
            GATED=gated,
            BIASED=bias is not None,
            ROWS=tiles.rows,
            BLOCK=tiles.columns,
            STAGES=tiles.stages,
            SECTORS=tiles.warps * 32 * SECTORS_OF_THREAD,
            num_warps=tiles.warps,
            **launch_options(x.device, overlap),
        )
    return out


def _multiply(dtype: torch.dtype, one: LinearFunction, many: LinearFunction, x: Tensor) -> Tensor:
    return one(x) if len(x) == 1 and x.dtype == dtype and x.stride(-1) == 1 else many(x)


def _copies(weight: Tensor) -> int:
    """How many matrices do not fit into the second-level cache together."""
    if not weight.is_cuda:
        return 1
    cache = int(torch.cuda.get_device_properties(weight.device).L2_cache_size)
    return max(1, min(LAUNCHES, -(-CACHES * cache // weight.nbytes)))


def seconds_each(products: Ordered[Callable[[], Tensor]]) -> float:
    """Of one product, replayed from a CUDA graph so that the host does not count; the median of some repeats."""
    turns = [products[turn % len(products)] for turn in range(LAUNCHES)]
    for product in products[:2]:
        product()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = [product() for product in turns]
    found = []
    for _ in range(1 + REPEATS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        found.append(before.elapsed_time(after) / 1e3 / LAUNCHES)
    del kept
    return statistics.median(found[1:])
