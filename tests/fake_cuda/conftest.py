from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.fake_cuda.device.kernels import record_kernels
from tests.fake_cuda.device.runtime import fake_device
from tests.interpreted_process import MARK


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of this folder, because their device interprets Triton's kernels."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(MARK)


@pytest.fixture(scope="session", autouse=True)
def faster_interpreter() -> Iterator[None]:
    """Make Triton's interpreter faster."""
    pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
    from tests.builtin_backends.triton.interpreter_patches import make_faster

    with pytest.MonkeyPatch.context() as patch:
        make_faster(patch)
        yield


@pytest.fixture
def without_gpu() -> None:
    """Skip the test if there is a CUDA device, which the fake device would hide."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which the fake would hide")


@pytest.fixture
def device(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide a fake ``cuda`` device whose Triton kernels are interpreted."""
    with fake_device(monkeypatch):
        record_kernels(monkeypatch)
        yield


@pytest.fixture
def idle_device(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide a fake ``cuda`` device whose Triton kernels only check their arguments, and whose memory begins with
    zeros."""
    with fake_device(monkeypatch, fresh=0.0):
        record_kernels(monkeypatch, idle=True)
        yield
