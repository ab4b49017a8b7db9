"""Slot tables of a step, as attention backends want them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug.transfer import send


def tables(slots: Ordered[array[int]], ends: Ordered[int], device: torch.device) -> Tensor:
    """``[B, longest]`` int64 on ``device``: each sequence's slots up to its end, padded with 0."""
    longest, found = max(ends), array("q")
    for own, end in zip(slots, ends, strict=True):
        found += own[:end]
        found.frombytes(bytes(8 * (longest - end)))
    return send(torch.frombuffer(found, dtype=torch.int64).view(len(ends), longest), device)
