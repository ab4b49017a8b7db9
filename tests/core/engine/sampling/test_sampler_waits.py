"""Sampling on an asynchronous device neither reads from the device nor waits for copies to it.

The device is ``meta``, whose tensors have no values to read.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_plug import AllowedTokens, LogprobOptions, Request, SamplingParams
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.serving.waiting import META, asynchronous

from .sampling_cases import sequence_of

WIDTH = 2500
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.1},
    "all cuts": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.1},
    "bias": {"logit_bias": {5: 1.0, 9: -3.0}},
    "early stop": {"stop_token_ids": (3, 4), "min_new_tokens": 2},
}


def sequence(**params: Any) -> Sequence:
    logprobs = params.pop("logprobs", None)
    request = Request(id="r", tokens=(1, 2, 3), params=SamplingParams(seed=1, **params), logprobs=logprobs)
    return sequence_of(request, WIDTH, META)


def draw(sampler: Sampler, sequences: list[Sequence], allowed: AllowedTokens | None = None) -> None:
    logits = torch.zeros(len(sequences), WIDTH, device=META, dtype=torch.bfloat16)
    with asynchronous():
        step = sampler.sample(logits, sequences, allowed, ahead=[1] * len(sequences))
    assert step.tokens.shape == (len(sequences),) and step.tokens.device == META


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits(kind: str) -> None:
    sampler, whole = Sampler(), [sequence(**KINDS[kind]) for _ in range(3)]
    for _ in range(2):  # the first call prepares the step, the second one reuses it
        draw(sampler, whole)
    draw(sampler, [sequence(**KINDS[kind]), sequence(temperature=0.0), sequence(), *whole])


def test_nothing_waits_for_masks_and_log_probabilities() -> None:
    mask = torch.full((2, -(-WIDTH // 32)), -1, dtype=torch.int32)
    rows = [sequence(), sequence(logprobs=LogprobOptions(top=3, ids=(4, 5), ranks=True)), sequence(temperature=0.0)]
    draw(Sampler(), rows, AllowedTokens([0, 2], mask))
    draw(Sampler(), rows[:2], AllowedTokens([0, 1], mask))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x[[0, 1]],
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(2).to(META),
        lambda x: x.cpu(),
    ],
)
def test_waiting_is_seen(wait: Any) -> None:
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), asynchronous():
        wait(torch.zeros(2, device=META))
