"""Masks on logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sglang_plug.drawing import mask_logits
from sglang_plug.request import RequestError

from .transfer import send, upload


@dataclass(frozen=True, slots=True)
class Allowed:
    """What some rows of a batch may take."""

    rows: list[int]
    mask: Tensor
    """int32 ``[len(rows), words]`` on the host, as ``Grammar.fill`` makes it."""
    errors: Mapping[int, RequestError] = field(default_factory=dict)
    """Row of the batch -> why it has no mask."""

    def apply(self, logits: Tensor, kernel: Callable[[Tensor, Tensor | None, Tensor], Tensor] = mask_logits) -> Tensor:
        """float32 ``logits`` ``[rows, vocabulary]`` with -inf where a token is not allowed; may overwrite them."""
        rows = None if len(self.rows) == len(logits) else upload(self.rows, torch.int64, logits.device)
        return kernel(logits, rows, send(self.mask, logits.device))
