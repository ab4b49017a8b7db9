"""Recurrent layers: interpreted against the definitions, however long the sequences, and compiled for Hopper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0")
pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import Runs
from sglang_plug_backends.triton import launch, recurrent

from .compiling import CompileOnly, assert_waits_first, assert_waits_first_as_assembled

HEADER = """
import itertools
import torch
from sglang_plug import Runs, scanning
from sglang_plug_backends.triton import recurrent
from sglang_plug_backends.triton.launch import INTERPRETED

assert INTERPRETED
CPU = torch.device("cpu")
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = ([1], [1, 1, 1], [9, 1, 3], [70, 1, 2])
torch.manual_seed(1)

def same(name, given, states, lengths):
    runs = Runs.of(list(range(2, 2 + len(lengths)))[::-1], lengths, CPU)
    others = states.clone()
    expected = getattr(scanning, name)(*given, others, runs)
    found = getattr(recurrent, name)(*given, states, runs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    for mine, theirs, dtype in ((found, expected, found.dtype), (states, others, states.dtype)):
        error = (mine.double() - theirs.double()).norm() / theirs.double().norm()
        assert error <= BOUNDS[dtype], (name, lengths, float(error))
"""
CONVOLUTION = """
for dtype, lengths, (channels, width), biased in itertools.product(
    (torch.float32, torch.bfloat16), LENGTHS, ((300, 4), (24, 2), (40, 9)), (True, False)
):
    x = torch.randn(sum(lengths), channels + 8).to(dtype)[:, 8:]
    weight, states = torch.randn(channels, width).to(dtype), torch.randn(6, width - 1, channels).to(dtype)
    same("causal_conv", (x, weight, torch.randn(channels).to(dtype) if biased else None), states, lengths)
"""
RECURRENCE = """
for dtype, lengths, (key_heads, heads, dim, value_dim) in itertools.product(
    (torch.float32, torch.bfloat16), LENGTHS, ((2, 4, 16, 16), (1, 2, 20, 40))
):
    tokens = sum(lengths)
    q, k = (torch.randn(tokens, 2 * key_heads, dim).to(dtype) * dim**-0.5).chunk(2, 1)
    v = torch.randn(tokens, heads, value_dim).to(dtype)
    rate, decay = torch.rand(tokens, heads).to(dtype), -torch.rand(tokens, heads)
    states = torch.randn(6, heads, dim, value_dim)
    same("linear_attention", (q, k, v, decay), states.clone(), lengths)
    same("gated_delta_rule", (q, k, v, decay, rate), states.clone(), lengths)
    if key_heads == heads or lengths[0] == 1:
        channels = -torch.rand(tokens, heads, dim)
        same("gated_delta_rule", (q, k, v, channels, rate), states.clone(), lengths)
"""
SCAN = """
for dtype, lengths, (channels, size) in itertools.product(
    (torch.float32, torch.bfloat16), LENGTHS, ((100, 16), (30, 5))
):
    tokens = sum(lengths)
    x, mixed = torch.randn(tokens, channels).to(dtype), torch.randn(tokens, 3 * size).to(dtype)
    given = (x, torch.rand(tokens, channels), -torch.rand(channels, size), mixed[:, :size], mixed[:, -size:])
    same("selective_scan", given, torch.randn(6, channels, size), lengths)
"""


@pytest.mark.parametrize("code", [CONVOLUTION, RECURRENCE, SCAN], ids=["convolution", "recurrence", "scan"])
def test_interpreted_kernels(code: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", HEADER + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(launch.INTERPRETED, reason="the interpreter is on, so there is nothing to compile")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiled_for_hopper(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the shape of Qwen3-Next, and of a Mamba."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "can_overlap", lambda device: True)
    monkeypatch.setattr(recurrent, "runs", lambda *tensors: True)
    found: list[Any] = []
    for name in [name for name in vars(recurrent) if name.endswith("_kernel")]:
        monkeypatch.setattr(recurrent, name, CompileOnly(getattr(recurrent, name), found.append))
    runs = Runs.of([2, 3], [1, 1], torch.device("cpu"))
    x = torch.zeros(2, 8192, dtype=dtype)
    recurrent.causal_conv(
        x, torch.zeros(8192, 4, dtype=dtype), None, torch.zeros(4, 3, 8192, dtype=dtype), runs, overlap=True
    )
    q, v = torch.zeros(2, 16, 128, dtype=dtype), torch.zeros(2, 32, 128, dtype=dtype)
    decay, states = torch.zeros(2, 32), torch.zeros(4, 32, 128, 128)
    recurrent.gated_delta_rule(q, q, v, decay, torch.zeros(2, 32, dtype=dtype), states, runs, overlap=True)
    recurrent.linear_attention(q, q, v, decay, states, runs, overlap=True)
    wide = (x, torch.zeros(2, 8192), torch.zeros(8192, 16), x[:, :16], x[:, 16:32], torch.zeros(4, 8192, 16))
    recurrent.selective_scan(*wide, runs, overlap=True)
    names = ["conv_kernel", "conv_state_kernel", "recurrence_kernel", "recurrence_kernel", "selective_scan_kernel"]
    assert [one.metadata.name for one in found] == names
    for one in found:
        assert_waits_first(one)
    assert_waits_first_as_assembled(found[2], tmp_path)
