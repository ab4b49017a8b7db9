"""Sampling of tokens: interpreted and compiled, against the distribution that the definition states."""

from __future__ import annotations

import pytest
import torch

from sglang_plug import Kernels, SamplingOptions, SamplingParams
from sglang_plug.testing import check_sampling
from sglang_plug.testing.model.sampling import distribution, sampling_cases

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug_backends.triton import kernel_set as kernels
from sglang_plug_backends.triton import sampling
from sglang_plug_backends.triton.launch import INTERPRETED

# The interpreter computes with numpy, which warns where a device does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

device = "cpu" if INTERPRETED else "cuda"


def make_kernels() -> Kernels:
    built = kernels.build()
    assert built.sample_tokens.func is sampling.sample_tokens and built.mask_logits.func is sampling.mask_logits
    return built


def check_exact(*, width: int, block: int, some: int, every: int) -> None:
    # tokens share the numbers by id, so the middle of a token's share gives just that token
    generator = torch.Generator().manual_seed(4)
    for case in list(sampling_cases(width))[::every]:
        probs = distribution(case.logits, case.params)
        middles = probs.cumsum(0) - probs / 2
        kept = (probs > 1e-5).nonzero()[:, 0]
        edges = torch.cat(
            (kept[probs[kept].argsort()[:2]], kept[[0, -1]])
        )  # the least likely ones, the first, the last
        tokens = torch.cat((edges, kept[torch.randperm(len(kept), generator=generator)[:some]]))
        logits = case.logits.expand(len(tokens), -1).contiguous().to(device)
        options = SamplingOptions.of([case.params] * len(tokens), width, lambda tensor: tensor.to(device))
        uniform = middles[tokens].to(device)
        sampled = sampling.sample_tokens(logits, options, uniform, block=block, wide_block=block).cpu()
        assert torch.equal(sampled, tokens), (case.name, sampled.tolist(), tokens.tolist())


def check_not_finite() -> None:
    logits = torch.zeros(4, 50)
    logits[0, 3], logits[1, 4], logits[2], logits[3] = torch.nan, torch.inf, torch.nan, -torch.inf
    for params in (SamplingParams(), SamplingParams(top_k=3, top_p=0.5, min_p=0.1)):
        options = SamplingOptions.of([params] * 4, 50, lambda tensor: tensor.to(device))
        tokens = sampling.sample_tokens(
            logits.to(device), options, torch.full((4,), 0.5, dtype=torch.float64, device=device)
        )
        assert tokens.shape == (4,) and tokens.dtype == torch.int64


@pytest.mark.interpreted
def test_sampled_tokens_interpreted() -> None:
    check_exact(width=70, block=32, some=0, every=5)


@pytest.mark.slow
@pytest.mark.interpreted
@pytest.mark.parametrize(("width", "block"), [(5, 8), (70, 32), (300, 128), (1000, 1024)])
def test_sampled_tokens_in_many_widths_interpreted(width: int, block: int) -> None:
    check_exact(width=width, block=block, some=2, every=1)


@pytest.mark.slow
@pytest.mark.interpreted
def test_frequencies_and_masks_interpreted() -> None:
    check_sampling(make_kernels(), device=device, width=70, draws=8)


@pytest.mark.interpreted
def test_rows_that_are_not_finite_end_interpreted() -> None:
    check_not_finite()


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCompiled:
    @pytest.mark.parametrize(("width", "draws"), [(70, 1000), (5000, 4000)])
    def test_frequencies_and_masks(self, width: int, draws: int) -> None:
        check_sampling(make_kernels(), device=device, width=width, draws=draws)

    def test_sampled_tokens(self) -> None:
        check_exact(width=32000, block=2048, some=50, every=1)

    def test_rows_that_are_not_finite_end(self) -> None:
        check_not_finite()


def test_without_gpu_and_interpreter_the_definitions_are_used() -> None:
    check_sampling(kernels.build(), width=20, draws=30)
