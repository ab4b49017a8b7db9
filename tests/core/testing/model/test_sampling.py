from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import Kernels, SamplingOptions
from sglang_plug.ops import sampling
from sglang_plug.testing import check_sampling


def test_the_definitions_pass() -> None:
    check_sampling(Kernels())
    check_sampling(Kernels(), width=5, draws=60)


def test_the_definitions_pass_where_candidates_do_not_hold_everything() -> None:
    check_sampling(Kernels(), width=3 * sampling.CANDIDATES)


@pytest.mark.planted_bug("kernels")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda options: replace(options, temperature=options.temperature * 1.2), "times, not"),
        (
            lambda options: replace(options, top_k=options.top_k + 1, cut=tuple(range(len(options.params)))),
            "times, not",
        ),
        (lambda options: replace(options, top_p=options.top_p * 0.9), "times, not"),
        (lambda options: replace(options, min_p=options.min_p * 0.5), "times, not"),
    ],
)
def test_wrong_parameters_are_found(change: Any, message: str) -> None:
    def draw(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
        return sampling.sample_tokens(logits, change(options), uniform)

    with pytest.raises(AssertionError, match=message):
        check_sampling(Kernels(sample_tokens=draw))


@pytest.mark.planted_bug("kernels")
def test_a_row_that_depends_on_others_is_found() -> None:
    def draw(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
        shift = 0.0 if len(logits) != len(logits.unique(dim=0)) else 0.37 * len(logits)
        return sampling.sample_tokens(logits, options, (uniform + shift) % 1.0)

    with pytest.raises(AssertionError, match="depends on the batch"):
        check_sampling(Kernels(sample_tokens=draw))


@pytest.mark.planted_bug("kernels")
def test_rows_that_spoil_others_are_found() -> None:
    def draw(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
        actual = sampling.sample_tokens(logits, options, uniform)
        return torch.zeros_like(actual) if logits.isnan().any() else actual

    with pytest.raises(AssertionError, match="not finite change the tokens of others"):
        check_sampling(Kernels(sample_tokens=draw))


@pytest.mark.planted_bug("kernels")
def test_wrong_masks_are_found() -> None:
    def mask(logits: Tensor, rows: Tensor | None, mask: Tensor) -> Tensor:
        return sampling.mask_logits(logits, None if rows is None else rows.flip(0), mask)

    with pytest.raises(AssertionError, match="not what the definition gives"):
        check_sampling(Kernels(mask_logits=mask))


def first_block(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    block = SamplingOptions.of(options.params, min(1024, logits.shape[1]), lambda tensor: tensor)
    return sampling.sample_tokens(logits[:, :1024].contiguous(), block, uniform)


def token_0_for_0(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    return sampling.sample_tokens(logits, options, uniform).masked_fill_(uniform == 0, 0)


def exponentials(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    sums = (logits / options.temperature[:, None]).exp().sum(-1)
    return sampling.sample_tokens(logits, options, uniform).masked_fill_(~sums.isfinite(), 0)


@pytest.mark.planted_bug("kernels")
@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (first_block, "times, not"),
        (token_0_for_0, "the random number 0.0 leads to token 0, which may not come"),
        (exponentials, "at a temperature of 0.0001 the likeliest token must come"),
    ],
)
def test_extremes_are_tried(sample: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sampling(Kernels(sample_tokens=sample))
