"""Conformance test of the functions of a kernel set that mask logits and sample tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

import torch
from torch import Tensor

from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.ops.sampling import SamplingOptions
from sglang_plug.ops.sampling import mask_logits as definition

KINDS = ("ordinary", "many alike", "mostly masked")
WIDE = 3000
"""Tokens of a vocabulary that is larger than the blocks that kernels work in."""
LARGEST_BELOW_1 = 1 - 2.0**-53
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.4),
    SamplingParams(top_k=2),
    SamplingParams(top_k=10),
    SamplingParams(top_p=0.013),
    SamplingParams(top_p=0.63),
    SamplingParams(temperature=2.5, top_p=0.927),
    SamplingParams(min_p=0.11),
    SamplingParams(top_k=12, top_p=0.57),
    SamplingParams(temperature=1.7, top_k=9, top_p=0.929, min_p=0.07),
    SamplingParams(top_k=1 << 20, top_p=0.81),
)


@dataclass(frozen=True, slots=True)
class SamplingCase:
    """A row of logits, with sampling parameters."""

    name: str
    logits: Tensor
    params: SamplingParams


@torch.inference_mode()
def check_sampling(kernels: Kernels, *, device: str = "cpu", width: int = 70, draws: int = 128) -> None:
    """Sample with evenly spaced random numbers, so that the frequency of each token must be its probability, within one
    draw.

    Also checks that a row's token does not depend on other rows, that rows that are not finite do not affect others,
    and that masks exclude the right tokens.

    Args:
        kernels: the kernel set whose ``sample_tokens`` and ``mask_logits`` are checked.
        device: the device to compute on.
        width: number of tokens in the vocabulary.
        draws: number of samples for each case.

    Raises:
        AssertionError: names the first case that fails, and how.
    """
    cases = list(sampling_cases(width))
    for case in cases:
        _check_frequencies(kernels, case, device, draws)
    for case in islice(sampling_cases(WIDE), 0, None, 2):
        _check_frequencies(kernels, case, device, draws)
    _check_extremes(kernels, cases, device)
    _check_independence(kernels, cases, device)
    _check_masks(kernels, device)


def sampling_cases(width: int) -> Iterator[SamplingCase]:
    """Yield logits of several kinds with parameters of several kinds."""
    generator = torch.Generator().manual_seed(width)
    for kind, params in product(KINDS, PARAMS):
        logits = torch.randn(width, generator=generator) * 2
        if kind == "many alike":
            logits = logits.round()
        if kind == "mostly masked":
            logits[torch.rand(width, generator=generator) < 0.7] = -torch.inf
            logits[width // 2] = 1.0
        yield SamplingCase(f"{kind} logits {list(params_of(params).items())}", logits, params)


def params_of(params: SamplingParams) -> dict[str, float]:
    """Return the parameters that sampling depends on."""
    return {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the probability of each token, ``[vocabulary]`` float64; ties keep the lowest ids."""
    probs = (logits.double() / params.temperature).softmax(-1)
    values, order = probs.sort(descending=True, stable=True)
    limit = params.top_k if params.top_k > 0 else len(logits)
    values[limit:] = 0.0
    if params.top_p < 1.0:
        values[values.cumsum(0) - values >= params.top_p * values.sum()] = 0.0
    values[values < params.min_p * values[0]] = 0.0
    return torch.zeros_like(probs).scatter_(0, order, values / values.sum())


def _check_frequencies(kernels: Kernels, case: SamplingCase, device: str, draws: int) -> None:
    uniform = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    tokens = _sample(kernels, case.logits.expand(draws, -1), [case.params] * draws, uniform, device)
    assert bool(((tokens >= 0) & (tokens < len(case.logits))).all()), f"{case.name}: tokens are no tokens"
    counts = tokens.bincount(minlength=len(case.logits))
    expected = distribution(case.logits, case.params) * draws
    off = (counts - expected).abs()
    wrong = (off > 1.01) | ((counts > 0) & (expected == 0))
    assert not bool(wrong.any()), (
        f"{case.name}: tokens {wrong.nonzero()[:, 0].tolist()} came {counts[wrong].tolist()} times, not "
        f"{expected[wrong].tolist()}"
    )


def _check_independence(kernels: Kernels, cases: list[SamplingCase], device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.stack([case.logits for case in cases])
    params, uniform = [case.params for case in cases], torch.rand(len(cases), dtype=torch.float64, generator=generator)
    together = _sample(kernels, logits, params, uniform, device)
    for row in range(0, len(cases), 3):
        alone = _sample(kernels, logits[row : row + 1], params[row : row + 1], uniform[row : row + 1], device)
        assert alone[0] == together[row], f"{cases[row].name}: the token depends on the batch"
    broken = logits.clone()
    broken[0, 1], broken[2, 0], broken[4], broken[6, 2] = torch.nan, torch.inf, -torch.inf, -torch.nan
    mixed = _sample(kernels, broken, params, uniform, device)
    kept = [row for row in range(len(cases)) if row not in (0, 2, 4, 6)]
    assert torch.equal(mixed[kept], together[kept]), "rows that are not finite change the tokens of others"


def _check_extremes(kernels: Kernels, cases: list[SamplingCase], device: str) -> None:
    """The smallest and the largest random number lead to tokens that may come, and so does a very low temperature."""
    for number in (0.0, LARGEST_BELOW_1):
        uniform = torch.full((len(cases),), number, dtype=torch.float64)
        tokens = _sample(kernels, torch.stack([c.logits for c in cases]), [c.params for c in cases], uniform, device)
        for case, token in zip(cases, tokens.tolist(), strict=True):
            probability = float(distribution(case.logits, case.params)[token])
            assert probability > 0, (
                f"{case.name}: the random number {number} leads to token {token}, which may not come"
            )
    cold = SamplingParams(temperature=1e-4)
    logits = torch.stack([case.logits for case in cases if len(set(case.logits.tolist())) == len(case.logits)])
    tokens = _sample(
        kernels, logits, [cold] * len(logits), torch.full((len(logits),), 0.5, dtype=torch.float64), device
    )
    assert torch.equal(tokens, logits.argmax(-1)), "at a temperature of 0.0001 the likeliest token must come"


def _check_masks(kernels: Kernels, device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    for width, words in ((40, 2), (64, 2), (100, 4), (100, 3), (5000, 157)):
        mask = torch.randint(-(1 << 31), (1 << 31) - 1, (3, words), generator=generator).to(torch.int32)
        for rows in (None, torch.tensor([4, 0, 2])):
            logits = torch.randn(3 if rows is None else 6, width, generator=generator)
            logits[0, 1] = torch.nan
            index = None if rows is None else rows.to(device)
            masked = kernels.mask_logits(logits.to(device, copy=True), index, mask.to(device)).cpu()
            expected = definition(logits.clone(), rows, mask)
            assert torch.equal(masked.nan_to_num(9.0), expected.nan_to_num(9.0)), (
                f"masks of {words} words on {width} tokens, rows {rows}: not what the definition gives"
            )


def _sample(kernels: Kernels, logits: Tensor, params: list[SamplingParams], uniform: Tensor, device: str) -> Tensor:
    options = SamplingOptions.of(params, logits.shape[-1], lambda tensor: tensor.to(device))
    return kernels.sample_tokens(logits.contiguous().to(device, copy=True), options, uniform.to(device)).cpu()
