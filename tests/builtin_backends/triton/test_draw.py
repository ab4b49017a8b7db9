"""Drawing and masking, interpreted, in a process of its own, as Triton decides at import; compiled on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "0"  # in this process
pytest.importorskip("triton", reason="Triton is not installed")

HEADER = """
import torch
from sglang_plug import DrawOptions, Kernels, SamplingParams
from sglang_plug.testing import check_drawing
from sglang_plug.testing.drawing import distribution, draw_cases
from sglang_plug_backends.triton import draw, kernels
from sglang_plug_backends.triton.launch import INTERPRETED

assert INTERPRETED or torch.cuda.is_available()
device = "cuda" if not INTERPRETED else "cpu"
made = kernels.build()
assert made.draw_tokens.func is draw.draw_tokens and made.mask_logits.func is draw.mask_logits
"""
KIT = """
check_drawing(made, device=device, width={width}, draws={draws})
"""
EXACT = """
# tokens share the numbers by id, so the middle of a token's share gives just that token
draw.DRAW_BLOCK, draw.DRAW_WIDE = {block}, {block}
generator = torch.Generator().manual_seed(4)
for case in list(draw_cases({width}))[::{every}]:
    probs = distribution(case.logits, case.params)
    middles = probs.cumsum(0) - probs / 2
    kept = (probs > 1e-5).nonzero()[:, 0]
    edges = torch.cat((kept[probs[kept].argsort()[:2]], kept[[0, -1]]))  # the least likely ones, the first, the last
    tokens = torch.cat((edges, kept[torch.randperm(len(kept), generator=generator)[:{some}]]))
    logits = case.logits.expand(len(tokens), -1).contiguous().to(device)
    options = DrawOptions.of([case.params] * len(tokens), {width}, lambda tensor: tensor.to(device))
    found = draw.draw_tokens(logits, options, middles[tokens].to(device)).cpu()
    assert torch.equal(found, tokens), (case.name, found.tolist(), tokens.tolist())
"""
NOT_FINITE = """
logits = torch.zeros(4, 50)
logits[0, 3], logits[1, 4], logits[2], logits[3] = torch.nan, torch.inf, torch.nan, -torch.inf
for params in (SamplingParams(), SamplingParams(top_k=3, top_p=0.5, min_p=0.1)):
    options = DrawOptions.of([params] * 4, 50, lambda tensor: tensor.to(device))
    found = draw.draw_tokens(logits.to(device), options, torch.full((4,), 0.5, dtype=torch.float64, device=device))
    assert found.shape == (4,) and found.dtype == torch.int64
"""


def run(code: str, interpret: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", HEADER + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_drawn_interpreted() -> None:
    run(EXACT.format(width=70, block=32, some=0, every=5), "1")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "block"), [(5, 8), (70, 32), (300, 128), (1000, 1024)])
def test_what_is_drawn_in_many_widths_interpreted(width: int, block: int) -> None:
    run(EXACT.format(width=width, block=block, some=2, every=1), "1")


@pytest.mark.slow
def test_frequencies_and_masks_interpreted() -> None:
    run(KIT.format(width=70, draws=8), "1")


def test_rows_that_are_not_finite_end_interpreted() -> None:
    run(NOT_FINITE, "1")


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "code",
    [
        KIT.format(width=70, draws=1000),
        KIT.format(width=5000, draws=4000),
        EXACT.format(width=32000, block=2048, some=50, every=1),
        NOT_FINITE,
    ],
)
def test_compiled(code: str) -> None:
    run(code, "0")


def test_without_gpu_and_interpreter_the_definitions_are_used() -> None:
    from sglang_plug.testing import check_drawing
    from sglang_plug_backends.triton.kernels import build

    check_drawing(build(), width=20, draws=30)
