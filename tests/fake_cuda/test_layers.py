"""The benchmark of overlapping launches on the fake device, where they never overlap."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sglang_plug_backends.triton import matrix_vector as row
from tests.fake_cuda.device.tensors import clock

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {"rms_norm_kernel", "add_rms_norm_kernel", "rope_store_kernel", "row_kernel", "decode_kernel", "merge_kernel"}


def test_layers_are_made_of_the_plugins_kernels(idle_device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    gpu_layers = importlib.import_module("benchmarks.gpu.kernels.layers")
    monkeypatch.setattr(row, "TILES", row.TILES[:2])
    monkeypatch.setattr(gpu_layers, "CHECKED", gpu_layers.SHAPES["tiny"])
    monkeypatch.setattr(gpu_layers, "REPLAYS", 2)
    monkeypatch.setattr(gpu_layers, "STEPS", 1)
    clock.executed.clear()
    assert gpu_layers.launches("cuda") == {str(tiles): 3 for tiles in row.TILES}
    assert set(clock.executed) >= KERNELS
