"""Sizes from which attention on plain torch takes another way through a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Sizes at which one way of computing attention becomes faster than another, as measured on CPUs."""

    blocks: int = 8192
    """Number of queries times keys of a sequence from which blocks of queries are used."""
    shared_prefix: int = 128
    """Minimum length of a prefix common to all decodes for which it is read once for all of them."""
    wide_heads: int = 2
    """Maximum number of key heads that are all multiplied at once."""
    wide_decodes: int = 8
    """Minimum number of decodes for which all key heads are multiplied at once."""

    def suits_blocks(self, q: Tensor, length: int) -> bool:
        """Return True if whole matrix products are faster than torch's flash attention."""
        return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[0] * length >= self.blocks

    def suits_wide(self, q: Tensor, v: Tensor) -> bool:
        """Return True if one product over all key heads is faster than one for each."""
        few = q.shape[1] <= self.wide_heads and q.shape[0] >= self.wide_decodes
        return few and q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-1] == v.shape[-1]


MEASURED = Thresholds()
