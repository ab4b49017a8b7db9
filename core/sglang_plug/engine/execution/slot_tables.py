"""Slot tables of a step in the format of attention backends."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug.ops.host_device_copy import send


def tables(slots: Ordered[array[int]], ends: Ordered[int], device: torch.device) -> Tensor:
    """Return ``[B, longest]`` int64 on ``device``: each sequence's slots up to its end, padded with 0."""
    longest, rows = max(ends), array("q")
    for sequence_slots, end in zip(slots, ends, strict=True):
        rows += sequence_slots[:end]
        rows.frombytes(bytes(8 * (longest - end)))
    return send(torch.frombuffer(rows, dtype=torch.int64).view(len(ends), longest), device)
