"""Masks over a vocabulary, as grammar backends need them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sglang_plug import Vocabulary

WORD = 32
"""Tokens in one word of a mask."""


def mask_of(tokens: Iterable[int], size: int) -> Tensor:
    """int32 ``[words]``: the bits of ``tokens``, those from ``size`` on left out."""
    allowed = torch.zeros(-(-size // WORD) * WORD, dtype=torch.bool)
    given = torch.tensor(list(tokens), dtype=torch.int64)
    allowed[given[given < size]] = True
    bits = allowed.view(-1, WORD).to(torch.int64) << torch.arange(WORD)
    return bits.sum(1).to(torch.int32)


def text_mask(vocabulary: Vocabulary) -> Tensor:
    """int32 ``[words]``: the tokens that stand for text."""
    return mask_of((token for token, piece in enumerate(vocabulary.pieces) if piece), vocabulary.size)
