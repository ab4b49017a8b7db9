"""Masks on logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Allowed:
    """What some rows of a batch may take."""

    rows: list[int]
    mask: Tensor
    """int32 ``[len(rows), words]`` on the host, as ``Grammar.fill`` makes it."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Row of the batch -> why it has no mask."""

    def apply(self, logits: Tensor) -> Tensor:
        """``logits`` ``[rows, vocabulary]`` with -inf where a token is not allowed; may overwrite them."""
        allowed = unpack(self.mask.to(logits.device), logits.shape[-1])
        if len(self.rows) == len(logits):
            return logits.masked_fill_(~allowed, -torch.inf)
        index = torch.tensor(self.rows, device=logits.device)
        logits[index] = logits[index].masked_fill_(~allowed, -torch.inf)
        return logits


def unpack(mask: Tensor, width: int) -> Tensor:
    """int32 ``[rows, words]`` to bool ``[rows, width]``; tokens beyond the mask are not allowed."""
    octets = mask.view(torch.uint8)
    allowed = _table(mask.device)[octets.to(torch.int32)].view(torch.bool)
    if allowed.shape[-1] < width:
        allowed = torch.nn.functional.pad(allowed, (0, width - allowed.shape[-1]))
    return allowed[:, :width]


@cache
def _table(device: torch.device) -> Tensor:
    """For each byte its eight bits, lowest first, as the eight bytes of an int64."""
    rows = [[octet >> bit & 1 for bit in range(8)] for octet in range(256)]
    return torch.tensor(rows, dtype=torch.uint8, device=device).view(torch.int64)[:, 0]
