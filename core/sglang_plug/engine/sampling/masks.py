"""Masks on logits, which step extensions fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from sglang_plug.contracts.extension.sampling_phases import AllowedTokens, PendingMask
from sglang_plug.contracts.request import RequestError
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.host_device_copy import send, upload
from sglang_plug.ops.sampling import mask_logits

NOTHING_IN_COMMON = "no token is allowed by all step extensions that limit the output"


def apply_mask(
    allowed: AllowedTokens, logits: Tensor, kernel: Callable[[Tensor, Tensor | None, Tensor], Tensor] = mask_logits
) -> Tensor:
    """Set float32 ``logits`` ``[rows, vocabulary]`` to -inf where a token is not allowed; may overwrite them."""
    rows = None if len(allowed.rows) == len(logits) else upload(allowed.rows, torch.int64, logits.device)
    return kernel(logits, rows, send(allowed.mask, logits.device))


def begin_masks(
    begins: Ordered[Callable[..., PendingMask | None]], sequences: Ordered[Sequence], *, asynchronous: bool
) -> PendingMask | None:
    """Let the extensions, by their methods ``allowed``, begin to fill masks; ``None`` if no row has one."""
    masks = [begin(sequences, asynchronous=asynchronous) for begin in begins]
    pending = [mask for mask in masks if mask is not None]
    if len(pending) > 1:
        return JointMask(pending)
    return pending[0] if pending else None


@dataclass(frozen=True, slots=True)
class JointMask:
    """The masks of several extensions, which allow what all of them allow. A ``PendingMask``."""

    masks: Ordered[PendingMask]

    def result(self) -> AllowedTokens:
        """Wait for all masks and return their intersection."""
        return reduce(intersection, [mask.result() for mask in self.masks])


def intersection(first: AllowedTokens, second: AllowedTokens) -> AllowedTokens:
    """Return what both allow; a row for which nothing is left has an error."""
    rows = sorted({*first.rows, *second.rows})
    words = max(first.mask.shape[1], second.mask.shape[1])
    mask = torch.full((len(rows), words), -1, dtype=torch.int32)
    index_by_row = {row: index for index, row in enumerate(rows)}
    for allowed in (first, second):
        indices = torch.tensor([index_by_row[row] for row in allowed.rows], dtype=torch.int64)
        mask[indices] &= pad(allowed.mask, (0, words - allowed.mask.shape[1]))
    errors: Mapping[int, RequestError] = {**second.errors, **first.errors}
    empty = [row for row, any_token in zip(rows, mask.any(1).tolist(), strict=True) if not any_token]
    return AllowedTokens(rows, mask, {**{row: RequestError(NOTHING_IN_COMMON) for row in empty}, **errors})
