from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sglang_plug_backends.triton import launch
from tests.fake_cuda.kernels import record_kernels
from tests.fake_cuda.runtime import playing


@pytest.fixture
def without_gpu() -> None:
    """Where there is a device, Triton's kernels are compiled for it; it decides at import, for all tests of a run."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: its place is taken")
    if not launch.INTERPRETED:
        pytest.skip("other tests had Triton's kernels compiled: run this folder by itself, as .ci/run does")


@pytest.fixture
def device(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device ``cuda`` whose Triton kernels are interpreted."""
    with playing(monkeypatch):
        record_kernels(monkeypatch)
        yield


@pytest.fixture
def idle_device(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device ``cuda`` whose Triton kernels do nothing but look at their arguments; memory begins with zeros."""
    with playing(monkeypatch, fresh=0.0):
        record_kernels(monkeypatch, idle=True)
        yield
