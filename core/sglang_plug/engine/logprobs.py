"""What is reported of a model's distribution: log-probabilities of tokens that were taken, and of others."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.request import LogprobOptions, TokenLogprob
from sglang_plug.transfer import Fetched, upload


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports of some rows that a device works out; reading them waits for it."""

    options: tuple[LogprobOptions, ...]
    fetched: Fetched
    """Of each row: the token's log-probability ``[rows]``, the likeliest tokens' and their ids ``[rows, most]``, and
    those of named tokens, row after row."""

    def read(self, tokens: Ordered[int]) -> list[TokenLogprob]:
        """One for each row, whose token is in ``tokens``."""
        picked, values, indices, named = (one.tolist() for one in self.fetched.read())
        found, start = [], 0
        for row, (token, option) in enumerate(zip(tokens, self.options, strict=True)):
            top = tuple(zip(indices[row], values[row], strict=True))[: option.top]
            stop = start + len(option.ids)
            found.append(TokenLogprob(token, picked[row], top, tuple(zip(option.ids, named[start:stop], strict=True))))
            start = stop
        return found


def report(logprobs: Tensor, tokens: Tensor, options: Ordered[LogprobOptions]) -> Reports:
    """Of ``logprobs`` ``[rows, vocabulary]``: each row's token's (``tokens`` ``[rows]`` int64 on the same device), the
    likeliest, and named ones. Does not wait for the device."""
    picked = logprobs.gather(1, tokens[:, None])[:, 0]
    top = logprobs.topk(min(max(one.top for one in options), logprobs.shape[-1]), dim=-1)
    places = [row * logprobs.shape[-1] + token for row, one in enumerate(options) for token in one.ids]
    named = logprobs.flatten()[upload(places, torch.int64, logprobs.device)] if places else picked[:0]
    return Reports(tuple(options), Fetched.of(picked, top.values, top.indices, named))


def describe(logprobs: Tensor, tokens: Ordered[int], options: Ordered[LogprobOptions]) -> list[TokenLogprob]:
    """The same at once, for tokens that the host knows."""
    return report(logprobs, upload(tokens, torch.int64, logprobs.device), options).read(tokens)
