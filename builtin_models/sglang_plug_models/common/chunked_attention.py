"""Chunked attention for every attention backend. Not a plugin.

A token attends only to earlier tokens of its own chunk. A window of a chunk's length includes at most one other chunk,
the previous one. Extra key dimensions encode the parity of the chunk, and their product with the query's adds nothing
for equal parities and otherwise a penalty that hides the key. Backends are unaware of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 8
"""Extra dimensions of keys, chosen to keep rows aligned."""
STRENGTH = 128.0
"""Half of the penalty on logits: large enough for a zero exponential, small enough to keep the others exact."""

Parities = tuple[Tensor, Tensor]
"""Extra dimensions of queries and keys, ``[T, 1, WIDTH]`` each."""


def parities(positions: Tensor, chunk: int, scale: float, dtype: torch.dtype) -> Parities:
    """Return the dimensions for ``positions`` ``[T]`` and chunks of ``chunk`` tokens, in ``dtype``."""
    sign = 1.0 - 2.0 * (positions // chunk % 2).float()
    ones, strength = torch.ones_like(sign), STRENGTH / scale
    query = torch.stack((strength * sign, -strength * ones), dim=-1)
    key = torch.stack((sign, ones), dim=-1)
    return _wide(query, dtype), _wide(key, dtype)


def zero_parities(x: Tensor) -> Parities:
    """Return dimensions of the same width without effect."""
    nothing = x.new_zeros(len(x), 1, WIDTH)
    return nothing, nothing


def append_dims(x: Tensor, further: Tensor) -> Tensor:
    """Append ``further`` ``[T, 1, WIDTH]`` to each head of ``[T, heads, dim]``."""
    return torch.cat((x, further.expand(-1, x.shape[1], -1)), dim=-1)


def _wide(x: Tensor, dtype: torch.dtype) -> Tensor:
    return F.pad(x, (0, WIDTH - x.shape[-1])).to(dtype)[:, None]
