"""Sequences that use the built-in logits processors, and sampling with a new sampler for each call."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from functools import cache

import torch
from torch import Tensor

from sglang_plug import AllowedTokens, Plugins, Request, TokenLogprob
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.plugins.request_fields import RequestFields

LONGEST = 1 << 20
CPU = torch.device("cpu")


@cache
def processors(vocabulary: int, device: torch.device = CPU) -> LogitsProcessors:
    """Return the logits processors of every installed plugin."""
    plugins = Plugins.discover()
    return LogitsProcessors.build(plugins, RequestFields.of(plugins), vocabulary, device)


def sequence_of(request: Request, vocabulary: int, device: torch.device = CPU) -> Sequence:
    """Return a sequence of a request, admitted as the engine does it."""
    return Sequence.of(request, LONGEST, processors=processors(vocabulary, device).admit(request))


def sample(
    logits: Tensor, sequences: Ordered[Sequence], allowed: AllowedTokens | None = None
) -> tuple[list[int], list[TokenLogprob | None]]:
    """Sample a token for each row; return the tokens and their log-probabilities."""
    return read(Sampler().sample(logits, sequences, allowed))


def read(step: LaunchedStep) -> tuple[list[int], list[TokenLogprob | None]]:
    """Return each row's token and log-probability from the results of a step; a row without a token must have an
    error."""
    results = step.results()
    tokens = [result.token for result in results if result.token is not None]
    assert len(tokens) == len(results)
    assert all((token < 0) <= (result.error is not None) for token, result in zip(tokens, results, strict=True))
    return tokens, [result.logprob for result in results]
