"""Matrix-vector products: a kernel with the sizes that were fastest on the GPU, if it beats the library.

A single decoding sequence reads each matrix for one row. The library's share of the memory bandwidth then depends on
the shape, so it is measured once for each shape after the weights are loaded.
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

from sglang_plug import LinearFunction
from sglang_plug_backends.triton.kernels.matrix_vector import row_kernel

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .launch import launch_options

logger = logging.getLogger(__name__)

WORTH = 0.97
"""Maximum share of the library's time with which the kernel is chosen."""
LAUNCHES, REPEATS = 16, 5
"""Products per measurement, and number of measurements."""
SECTORS_OF_THREAD = 4
"""Sectors that a thread prefetches of its program's rows: at most 35 MB over the whole device."""
CACHES = 3
"""Size of the matrices that are timed in turns, in second-level caches."""
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Sizes of one program's work."""

    rows: int
    columns: int
    """Numbers read at once from each row; a power of two like ``rows``."""
    warps: int
    """Number of warps of 32 threads."""
    stages: int = 1
    """Blocks of ``columns`` in flight from memory; more than one use shared memory."""


TILES = (
    Tiles(rows=4, columns=512, warps=4),
    Tiles(rows=2, columns=1024, warps=4),
    Tiles(rows=8, columns=512, warps=8),
    Tiles(rows=16, columns=256, warps=4),
    Tiles(rows=4, columns=1024, warps=8),
    Tiles(rows=4, columns=512, warps=4, stages=3),
    Tiles(rows=2, columns=1024, warps=4, stages=4),
)
"""Candidate sizes. Each is compiled once for all shapes, because these are no constants of the kernel."""
MultiplyRow = Callable[..., Tensor]
"""The signature of ``multiply_row``."""
Time = Callable[[Ordered[Callable[[], Tensor]]], float]
"""Timer that returns the seconds of each of several products, run in turns."""


class RowProducts:
    """Packs matrices and remembers the best tiles for their shapes.

    Args:
        silu_mul: see ``Kernels.silu_mul``.
        time: how products are timed; on a GPU by default.
        overlap: let each kernel start while the one before it ends.
        multiply: calls the kernel; ``multiply_row`` by default.
    """

    def __init__(
        self,
        silu_mul: Callable[[Tensor], Tensor],
        time: Time | None = None,
        *,
        overlap: bool = False,
        multiply: MultiplyRow | None = None,
    ) -> None:
        self._silu_mul, self._time = silu_mul, time
        self._multiply_row = partial(multiply or multiply_row, overlap=overlap)
        self._tiles: dict[tuple[torch.Size, torch.dtype, bool, bool], Tiles | None] = {}

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
        if kind not in self._tiles:
            self._tiles[kind] = self._best(weight, bias, gated=gated)
        tiles = self._tiles[kind]
        if tiles is None:
            return many
        single = partial(self._multiply_row, weight, bias, gated=gated, tiles=tiles)
        return partial(_multiply, weight.dtype, single, many)

    def _many(self, weight: Tensor, bias: Tensor | None, *, gated: bool) -> LinearFunction:
        """Multiply any number of rows by the library."""
        if gated:
            return lambda x: self._silu_mul(F.linear(x, weight, bias))
        return lambda x: F.linear(x, weight, bias)

    @torch.inference_mode()
    def _best(self, weight: Tensor, bias: Tensor | None, *, gated: bool) -> Tiles | None:
        """Return the tiles that are clearly faster than the library; ``None`` if there are none or no measurement."""
        time = seconds_each if self._time is None else self._time
        try:
            x = torch.randn(1, weight.shape[1], device=weight.device, dtype=weight.dtype)
            copies = [weight, *(weight.clone() for _ in range(_copies(weight) - 1))]
            library = time([partial(self._many(copy, bias, gated=gated), x) for copy in copies])
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
            products = [partial(self._multiply_row, copy, bias, x, gated=gated, tiles=tiles) for copy in copies]
            try:
                yield tiles, time(products)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # errors for missing device features vary
                logger.debug("%s cannot be used: %s: %s", tiles, type(error).__name__, error)


def multiply_row(
    weight: Tensor, bias: Tensor | None, x: Tensor, *, gated: bool, tiles: Tiles, overlap: bool = False
) -> Tensor:
    """Compute ``F.linear(x, weight, bias)`` of ``x`` ``[1, in]``, or ``silu(gate) * up``, rounded once."""
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


def _multiply(dtype: torch.dtype, single: LinearFunction, many: LinearFunction, x: Tensor) -> Tensor:
    return single(x) if len(x) == 1 and x.dtype == dtype and x.stride(-1) == 1 else many(x)


def _copies(weight: Tensor) -> int:
    """Return the number of matrices that exceed the second-level cache together."""
    if not weight.is_cuda:
        return 1
    cache = int(torch.cuda.get_device_properties(weight.device).L2_cache_size)
    return max(1, min(LAUNCHES, -(-CACHES * cache // weight.nbytes)))


def seconds_each(products: Ordered[Callable[[], Tensor]]) -> float:
    """Time one product, replayed from a CUDA graph to exclude the host; the median of several repeats."""
    turns = [products[turn % len(products)] for turn in range(LAUNCHES)]
    for product in products[:2]:
        product()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = [product() for product in turns]
    results = []
    for _ in range(1 + REPEATS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        results.append(before.elapsed_time(after) / 1e3 / LAUNCHES)
    del kept
    return statistics.median(results[1:])
