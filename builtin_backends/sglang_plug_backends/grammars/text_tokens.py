"""Vocabulary bit masks for grammar backends."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sglang_plug import Vocabulary

WORD = 32
"""Number of tokens per mask word."""


def mask_of(tokens: Iterable[int], size: int) -> Tensor:
    """Build an int32 mask ``[words]`` of ``tokens``; tokens from ``size`` on are ignored."""
    allowed = torch.zeros(-(-size // WORD) * WORD, dtype=torch.bool)
    ids = torch.tensor(list(tokens), dtype=torch.int64)
    allowed[ids[ids < size]] = True
    bits = allowed.view(-1, WORD).to(torch.int64) << torch.arange(WORD)
    return bits.sum(1).to(torch.int32)


def text_mask(vocabulary: Vocabulary) -> Tensor:
    """Build an int32 mask ``[words]`` of the tokens that stand for text."""
    return mask_of((token for token, piece in enumerate(vocabulary.pieces) if piece), vocabulary.size)
