"""Products with matrices in codes: interpreted against their definition, and compiled for Hopper."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0")
pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug_backends.triton import coded, kernels, launch
from tests.builtin_backends.coded_weights import random_weight

from .compiling import SHARED_MEMORY, CompileOnly, assert_waits_first

HEADER = """
import itertools
import torch
from sglang_plug_backends.triton import coded
from sglang_plug_backends.triton.coded import Blocks
from tests.builtin_backends.coded_weights import random_weight

BOUNDS = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SIZES = ((64, 128, 32), (130, 512, 128), (31, 256, 256), (40, 200, 200), (48, 160, 64), (16, 2048, 128))

def close(found, x, weight, bias, where):
    assert found.dtype == x.dtype and found.shape == (len(x), weight.shape[0]), where
    expected = x.double() @ weight.dense(torch.float64).T + (0 if bias is None else bias.double())
    error = (found.double() - expected).norm() / expected.norm()
    assert error <= BOUNDS[x.dtype], (where, float(error))
"""
PRODUCTS = """
for kind, size, dtype in itertools.product(("4", "8", "e4m3"), SIZES, BOUNDS):
    weight = random_weight(kind, *size)
    for bias, rows in ((None, 1), (torch.randn(size[0]).to(dtype), 17), (torch.randn(size[0]).to(dtype), 65)):
        linear = coded.pack_coded(weight, bias, dtype)
        x = torch.randn(rows, size[1]).to(dtype)
        close(linear(x), x, weight, bias, (kind, size, dtype, rows))
    assert linear(x[:0]).shape == (0, size[0])
"""
SPLITS = """
weight, bias = random_weight("4", 100, 640, 64), torch.randn(100)
for rows, columns, depth, splits in ((16, 64, 32, 1), (16, 128, 64, 3), (32, 32, 64, 10), (16, 64, 64, 16)):
    x = torch.randn(20, 640)
    blocks = Blocks(rows=rows, columns=columns, depth=depth, splits=splits)
    close(coded.multiply(x, weight, bias, blocks), x, weight, bias, blocks)
"""
DENSE = """
for kind, size in itertools.product(("4", "8", "e4m3"), SIZES):
    weight = random_weight(kind, *size)
    found = coded.dense(weight, torch.float32, coded.depth_block(weight))
    assert torch.equal(found, weight.dense(torch.float32)), (kind, size)
"""


@pytest.mark.parametrize("code", [PRODUCTS, SPLITS, DENSE], ids=["products", "splits", "dense"])
def test_interpreted(code: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", HEADER + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weight("4", 64, 128, 32)
    assert coded.pack_coded(weight, None, torch.bfloat16) is None, "neither a GPU nor the interpreter"
    monkeypatch.setattr(coded, "runs", lambda *tensors: True)
    assert coded.pack_coded(weight, None, torch.bfloat16) is not None
    assert coded.pack_coded(weight, None, torch.float64) is None
    assert coded.pack_coded(random_weight("4", 64, 96, 24), None, torch.bfloat16) is None
    assert kernels.build().pack_coded is not None


def test_programs_are_as_many_as_are_at_work() -> None:
    for rows, size_out, size_in in itertools.product((1, 9, 64), (64, 4096, 152_064), (32, 4096)):
        weight = random_weight("8", 8, size_in, 32)
        blocks = coded.blocks_for(rows, _Shaped(size_out, weight), 32)  # type: ignore[arg-type]
        assert rows <= blocks.rows and 1 <= blocks.splits <= max(1, size_in // 64)
        programs = -(-size_out // blocks.columns) * blocks.splits
        assert programs <= max(-(-size_out // blocks.columns), coded.PROGRAMS_OF_FEW)


class _Shaped:
    """A weight that says it is larger than it is."""

    def __init__(self, rows: int, weight: Any) -> None:
        self.shape = (rows, weight.shape[1])


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] != "0", reason="the interpreter is on, so there is nothing to compile"
)
@pytest.mark.parametrize("kind", ["4", "8", "e4m3"])
def test_compiled_for_hopper(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found: list[Any] = []
    for name in ("coded_kernel", "dense_kernel"):
        monkeypatch.setattr(coded, name, CompileOnly(getattr(coded, name), found.append))
    monkeypatch.setattr(coded, "runs", lambda *tensors: True)
    monkeypatch.setattr(launch, "can_overlap", lambda device: True)
    linear = coded.pack_coded(random_weight(kind, 256, 4096, 128), None, torch.bfloat16, overlap=True)
    assert linear is not None
    for rows in (1, 60, 65):
        linear(torch.zeros(rows, 4096, dtype=torch.bfloat16))
    assert [one.metadata.name for one in found] == ["coded_kernel", "coded_kernel", "dense_kernel"]
    assert "mma.sync" in found[0].asm["ptx"] and "wgmma" in found[1].asm["ptx"]
    for one in found:
        assert_waits_first(one)
        assert one.metadata.shared <= SHARED_MEMORY
