"""Pooling of hidden states to one vector for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .host_device_copy import upload

if TYPE_CHECKING:
    from sglang_plug.contracts.model.pooling import Pooling


def pooled(hidden: Tensor, lengths: Sequence[int], pooling: Pooling) -> Tensor:
    """Pool ``hidden`` ``[T, hidden]``, the states of prompts of ``lengths``, to float32 vectors ``[B, hidden]``."""
    ends = list(accumulate(lengths))
    match pooling.mode:
        case "last":
            vectors = _rows(hidden, [end - 1 for end in ends])
        case "cls":
            vectors = _rows(hidden, [end - length for end, length in zip(ends, lengths, strict=True)])
        case mode:
            vectors = torch.stack(
                [_reduce_states(part.float(), mode) for part in hidden.split_with_sizes(list(lengths))]
            )
    for projection in pooling.projections:
        vectors = torch.nn.functional.linear(vectors, projection.weight, projection.bias)
        vectors = vectors if projection.activation is None else projection.activation(vectors)
    return torch.nn.functional.normalize(vectors, dim=-1) if pooling.normalize else vectors


def _reduce_states(states: Tensor, mode: str) -> Tensor:
    """Reduce ``[n, hidden]`` to ``[hidden]``."""
    match mode:
        case "max":
            return states.amax(0)
        case "mean_sqrt_len":
            return states.sum(0) / len(states) ** 0.5
        case "weighted_mean":
            weights = torch.arange(1, len(states) + 1, dtype=torch.float32, device=states.device)
            return weights @ states / weights.sum()
    return states.mean(0)


def _rows(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    return hidden.index_select(0, upload(rows, torch.int64, hidden.device)).float()
