"""Reports of a model's distribution: log-probabilities of the chosen tokens and of alternatives."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.contracts.request import LogprobOptions, TokenLogprob
from sglang_plug.ops.host_device_copy import AsyncHostCopy, upload


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Reports of some rows that a device computes; reading them waits for it."""

    options: tuple[LogprobOptions, ...]
    fetched: AsyncHostCopy
    """For each row the token's log-probability ``[rows]``, those of the likeliest tokens and their ids
    ``[rows, alternatives]``, those of named tokens, row after row, and the token's rank ``[rows]``, or ``[0]`` if no
    row needs one."""

    def read(self, tokens: Ordered[int]) -> list[TokenLogprob]:
        """Return one report for each row, whose token is in ``tokens``."""
        picked, values, indices, named, ranks = (tensor.tolist() for tensor in self.fetched.read())
        reports, start = [], 0
        for row, (token, option) in enumerate(zip(tokens, self.options, strict=True)):
            top = tuple(zip(indices[row], values[row], strict=True))[: option.top]
            stop = start + len(option.ids)
            ids = tuple(zip(option.ids, named[start:stop], strict=True))
            rank = ranks[row] or None if option.ranks else None  # 0: not a number
            reports.append(TokenLogprob(token, picked[row], top, ids, rank))
            start = stop
        return reports


def queue_logprobs(logprobs: Tensor, tokens: Tensor, options: Ordered[LogprobOptions]) -> PendingLogprobs:
    """Report log-probabilities of each row's token, of the likeliest tokens and of named ones, and the token's rank.

    ``logprobs`` is ``[rows, vocabulary]``, ``tokens`` is ``[rows]`` int64 on the same device. Does not
    wait for the device.
    """
    picked = logprobs.gather(1, tokens[:, None])[:, 0]
    top = logprobs.topk(min(max(option.top for option in options), logprobs.shape[-1]), dim=-1)
    offsets = [row * logprobs.shape[-1] + token for row, option in enumerate(options) for token in option.ids]
    named = logprobs.flatten()[upload(offsets, torch.int64, logprobs.device)] if offsets else picked[:0]
    ranked = any(option.ranks for option in options)
    ranks = (logprobs >= picked[:, None]).sum(-1) if ranked else picked[:0]
    return PendingLogprobs(tuple(options), AsyncHostCopy.of(picked, top.values, top.indices, named, ranks))


def logprobs_of(logprobs: Tensor, tokens: Ordered[int], options: Ordered[LogprobOptions]) -> list[TokenLogprob]:
    """Report log-probabilities of tokens that the host knows; waits for the device. See ``queue_logprobs``."""
    return queue_logprobs(logprobs, upload(tokens, torch.int64, logprobs.device), options).read(tokens)
