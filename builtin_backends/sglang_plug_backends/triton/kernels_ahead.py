"""What lets a kernel start while those before it end (CUDA's programmatic dependent launch).

A kernel that is launched with ``launch_pdl`` may start as soon as every program of the one before it has begun, and
that one need not have waited for its own predecessor either. Nothing then orders them but ``await_inputs``, which comes
back when everything that was launched before has ended and its writes are seen. Therefore every program of a kernel
calls it outside of any branch, and neither reads nor writes global memory before: not even weights, as some layers
compute them in the step. What may be done before is to bring weights nearer (``ask_for``).
"""

from __future__ import annotations

import triton
import triton.language as tl

SECTOR_BITS = tl.constexpr(256)
"""What is brought to the second-level cache at once."""


@triton.jit  # type: ignore[untyped-decorator]
def await_inputs(AHEAD: tl.constexpr) -> None:
    """With ``AHEAD``: let the next kernel start, and wait until those before this one have ended."""
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def ask_for(pointers: tl.tensor) -> None:
    """Have the sectors brought to the second-level cache that ``pointers`` point into.

    That is no reading: whoever loads from there afterwards gets what is there by then.
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
    """``ask_for`` all of ``SIZE`` numbers; ``BLOCK`` is the power of two that holds them."""
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
    """``ask_for`` the beginnings of ``ROWS`` rows from ``first`` on, in each of some matrices ``[rows, size]`` that lie
    one behind the other; ``SECTORS`` in all."""
    WIDTH: tl.constexpr = SECTOR_BITS // pointer.dtype.element_ty.primitive_bitwidth
    PER_ROW: tl.constexpr = SECTORS // (ROWS * MATRICES)
    sectors = tl.arange(0, SECTORS)
    own = sectors // PER_ROW
    row = tl.minimum(first + own % ROWS, rows - 1) + own // ROWS * rows
    ask_for(pointer + row.to(tl.int64) * size + tl.minimum(sectors % PER_ROW * WIDTH, size - 1))
