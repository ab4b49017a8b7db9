"""Checks of tensors that the compiled kernels read: the right dtype and shape, and no gaps.

The library receives addresses and cannot check anything. Whoever passes the address of a temporary tensor must keep
that tensor alive until the call returns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dense_rows(x: Tensor, depth: int) -> Tensor:
    """Return bfloat16 ``x`` ``[T, depth]`` with contiguous rows. Raises ``ValueError`` for another dtype or shape."""
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != depth:
        raise ValueError(
            f"the kernels avx512 multiply [T, {depth}] in bfloat16 here, not {list(x.shape)} in "
            f"{str(x.dtype).removeprefix('torch.')}"
        )
    return x.contiguous()


def dense_bias(bias: Tensor | None, width: int) -> Tensor | None:
    """Return ``bias`` ``[width]`` in bfloat16. Raises ``ValueError`` if it has another length."""
    if bias is None:
        return None
    if bias.shape != (width,):
        raise ValueError(f"the bias must have {width} numbers, got the shape {list(bias.shape)}")
    return bias.to(torch.bfloat16).contiguous()
