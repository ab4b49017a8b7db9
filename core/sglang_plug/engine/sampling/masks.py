"""Masks on logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sglang_plug.contracts.request import RequestError
from sglang_plug.contracts.text.grammar import MASK_BITS
from sglang_plug.ops.host_device_copy import send, upload
from sglang_plug.ops.sampling import mask_logits


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that some rows of a batch may take."""

    rows: list[int]
    mask: Tensor
    """int32 ``[len(rows), words]`` on the host, as ``Grammar.fill`` makes it."""
    errors: Mapping[int, RequestError] = field(default_factory=dict)
    """Maps a row of the batch to the reason why it has no mask."""

    def apply(self, logits: Tensor, kernel: Callable[[Tensor, Tensor | None, Tensor], Tensor] = mask_logits) -> Tensor:
        """Set float32 ``logits`` ``[rows, vocabulary]`` to -inf where a token is not allowed; may overwrite them."""
        rows = None if len(self.rows) == len(logits) else upload(self.rows, torch.int64, logits.device)
        return kernel(logits, rows, send(self.mask, logits.device))


def word_and_bit(token: int) -> tuple[int, int]:
    """Return the word of a mask's row that holds ``token``, and its bit there as a signed number of 32 bits."""
    word, bit = divmod(token, MASK_BITS)
    return word, 1 << bit if bit < MASK_BITS - 1 else -(1 << bit)
