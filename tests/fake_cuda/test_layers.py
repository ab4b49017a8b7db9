"""The benchmark of overlapping launches runs on the fake device, where launches never overlap."""

from __future__ import annotations

from benchmarks.common.models import SHAPES
from benchmarks.gpu.kernels.layers import launches
from sglang_plug_backends.triton.matrix_vector import TILES
from tests.fake_cuda.device.tensors import clock

KERNELS = {"rms_norm_kernel", "add_rms_norm_kernel", "rope_store_kernel", "row_kernel", "decode_kernel", "merge_kernel"}


def test_layers_are_made_of_the_plugins_kernels(idle_device: None) -> None:
    tiles = TILES[:2]
    clock.executed.clear()
    rounds = launches("cuda", shape=SHAPES["tiny"], replays=2, steps=1, tiles=tiles)
    assert rounds == {str(item): 3 for item in tiles}
    assert set(clock.executed) >= KERNELS
