"""Programmatic dependent launch (CUDA): a kernel starts before the previous ones have ended.

A kernel that is launched with ``launch_pdl`` may start as soon as every program of the one before it has begun, and
that one need not have waited for its own predecessor either. The only ordering is ``await_inputs``, which returns when
everything that was launched before has ended and its writes are visible. Therefore every program of a kernel calls it
outside of any branch, and neither reads nor writes global memory before: not even weights, as some layers compute them
in the step. Only prefetching of weights (``ask_for``) is allowed before.
"""

from __future__ import annotations

import triton
import triton.language as tl

SECTOR_BITS = tl.constexpr(256)
"""Bits of the unit that is prefetched to the second-level cache."""


@triton.jit  # type: ignore[untyped-decorator]
def await_inputs(AHEAD: tl.constexpr) -> None:
    """With ``AHEAD``: let the next kernel start, and wait until the previous ones have ended."""
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def ask_for(pointers: tl.tensor) -> None:
    """Prefetch the sectors that ``pointers`` point into to the second-level cache.

    This is no read: a later load returns the memory's content at that time.
    """
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit  # type: ignore[untyped-decorator]
def ask_for_vector(pointer: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Prefetch all of ``SIZE`` numbers; ``BLOCK`` is the next power of two."""
    WIDTH: tl.constexpr = SECTOR_BITS // pointer.dtype.element_ty.primitive_bitwidth
    SECTORS: tl.constexpr = BLOCK // WIDTH if BLOCK > WIDTH else 1
    ask_for(pointer + tl.minimum(tl.arange(0, SECTORS) * WIDTH, SIZE - 1))


@triton.jit  # type: ignore[untyped-decorator]
def ask_for_rows(
    pointer: tl.tensor,
    first: tl.tensor,
    rows: tl.tensor,
    size: tl.tensor,
    ROWS: tl.constexpr,
    MATRICES: tl.constexpr,
    SECTORS: tl.constexpr,
) -> None:
    """Prefetch the beginnings of ``ROWS`` rows from ``first`` on, in each of several matrices.

    The matrices ``[rows, size]`` are contiguous; ``SECTORS`` is the total number of sectors.
    """
    WIDTH: tl.constexpr = SECTOR_BITS // pointer.dtype.element_ty.primitive_bitwidth
    PER_ROW: tl.constexpr = SECTORS // (ROWS * MATRICES)
    sectors = tl.arange(0, SECTORS)
    own = sectors // PER_ROW
    row = tl.minimum(first + own % ROWS, rows - 1) + own // ROWS * rows
    ask_for(pointer + row.to(tl.int64) * size + tl.minimum(sectors % PER_ROW * WIDTH, size - 1))
