"""Attention within chunks of a sequence, for every attention backend. Not a plugin.

A token sees its own chunk only, as far as it has come. A window of a chunk's length leaves at most one other chunk in
sight, the one before. Keys know, in further numbers, whether their chunk's number is even, and a product with those of
a query adds nothing where both are alike, and so much less where they are not that nothing is seen. Backends know
nothing of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 8
"""By how many numbers keys become wider, so that rows stay aligned."""
STRENGTH = 128.0
"""Half of what a logit loses: enough for its exponential to be nothing, and so little that others stay exact."""

Parities = tuple[Tensor, Tensor]
"""What queries and keys get, ``[T, 1, WIDTH]`` each."""


def parities(positions: Tensor, chunk: int, scale: float, dtype: torch.dtype) -> Parities:
    """Of tokens at ``positions`` ``[T]``, for chunks of ``chunk`` tokens and ``Attention.scale``, in ``dtype``."""
    sign = 1.0 - 2.0 * (positions // chunk % 2).float()
    ones, strength = torch.ones_like(sign), STRENGTH / scale
    query = torch.stack((strength * sign, -strength * ones), dim=-1)
    key = torch.stack((sign, ones), dim=-1)
    return _wide(query, dtype), _wide(key, dtype)


def neutral(x: Tensor) -> Parities:
    """What makes queries and keys as wide, and no difference."""
    nothing = x.new_zeros(len(x), 1, WIDTH)
    return nothing, nothing


def widened(x: Tensor, further: Tensor) -> Tensor:
    """``[T, heads, dim]`` with ``further`` ``[T, 1, WIDTH]`` behind each head."""
    return torch.cat((x, further.expand(-1, x.shape[1], -1)), dim=-1)


def _wide(x: Tensor, dtype: torch.dtype) -> Tensor:
    return F.pad(x, (0, WIDTH - x.shape[-1])).to(dtype)[:, None]
