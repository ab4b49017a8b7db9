"""Masks on logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Allowed:
    """What some rows of a batch may take."""

    rows: list[int]
    mask: Tensor
    """int32 ``[len(rows), words]`` on the host, as ``Grammar.fill`` makes it."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Row of the batch -> why it has no mask."""

    def apply(self, logits: Tensor) -> Tensor:
        """float32 ``logits`` ``[rows, vocabulary]`` with -inf where a token is not allowed; may overwrite them."""
        barred = bar(self.mask.to(logits.device), logits.shape[-1])
        if len(self.rows) == len(logits):
            return logits.add_(barred)
        index = torch.tensor(self.rows, device=logits.device)
        return logits.index_add_(0, index, barred)


def bar(mask: Tensor, width: int) -> Tensor:
    """int32 ``[rows, words]`` to float32 ``[rows, width]``: 0 for what is allowed, else -inf.

    To be added: on a CPU that is twenty times as fast as filling. Tokens beyond the mask are not allowed.
    """
    octets = mask.view(torch.uint8).to(torch.int32)
    barred = F.embedding(octets, _table(mask.device)).flatten(1)
    if barred.shape[-1] < width:
        barred = F.pad(barred, (0, width - barred.shape[-1]), value=-torch.inf)
    return barred[:, :width]


@cache
def _table(device: torch.device) -> Tensor:
    """``[256, 8]``: for each byte what to add for its eight bits, lowest first."""
    rows = [[0.0 if octet >> bit & 1 else -torch.inf for bit in range(8)] for octet in range(256)]
    return torch.tensor(rows, dtype=torch.float32, device=device)
