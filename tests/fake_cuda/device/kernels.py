"""Launches of Triton's kernels on the fake device: arguments are checked, and kernels are interpreted."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from sglang_plug_backends.triton import attention, launch, moe, quantized, recurrent, sampling
from sglang_plug_backends.triton import kernel_set as kernels
from sglang_plug_backends.triton import lora as low_rank
from sglang_plug_backends.triton import matrix_vector as row
from tests.fake_cuda.device.tensors import DeviceTensor, clock

MODULES = (attention, quantized, sampling, kernels, low_rank, moe, launch, recurrent, row)
STRIDED = {
    "decode_kernel": ("q", "k", "v", "part", "tables"),
    "prefill_kernel": ("q", "k", "v", "out", "tables"),
    "merge_kernel": ("out",),
    "rms_norm_kernel": ("x",),
    "rope_kernel": ("x", "cos", "sin"),
    "rope_store_kernel": ("q", "k", "v", "cos", "sin", "pool_k", "pool_v"),
    "grouped_kernel": ("x",),
    "shrink_kernel": ("x",),
    "expand_kernel": ("y",),
    "conv_kernel": ("x", "bias"),
    "conv_state_kernel": ("x",),
    "recurrence_kernel": ("q", "k", "v"),
    "selective_scan_kernel": ("x", "b", "c"),
}
"""Arguments with stride parameters; all others must be contiguous."""
CHEAP = ("mask_kernel", "draw_kernel")
"""Fast kernels that always run, because disallowed tokens would be sampled without them."""
WIDEST_GRID = (2**31 - 1, 65535, 65535)


class Launcher:
    """A stand-in for a kernel, called as ``kernel[grid](...)``."""

    def __init__(self, kernel: Any, execute: bool) -> None:
        self.kernel, self.execute = kernel, execute
        self.name = kernel.fn.__name__
        self.names = tuple(kernel.arg_names)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(0 < size <= limit for size, limit in zip(grid, WIDEST_GRID, strict=False)), (self.name, grid)

        def queue(*args: Any, **kwargs: Any) -> None:
            clock.executed[self.name] += 1
            for name, value in [*zip(self.names, args, strict=False), *kwargs.items()]:
                self.check(name, value)
            if self.execute:
                inner_args = [arg.inner if isinstance(arg, DeviceTensor) else arg for arg in args]
                self.kernel[grid](*inner_args, **kwargs)
                if clock.tape is not None:
                    clock.tape.append(lambda: self.kernel[grid](*inner_args, **kwargs))

        return queue

    def check(self, name: str, value: Any) -> None:
        """Check that an argument is a number or a tensor on the device."""
        where = f"{self.name}({name})"
        if not isinstance(value, Tensor):
            assert isinstance(value, (int, float, str)), f"{where} is a {type(value).__name__}"
            return
        assert isinstance(value, DeviceTensor), f"{where} is a tensor of the host"
        if name.removesuffix("_pointer") not in STRIDED.get(self.name, ()):
            assert value.is_contiguous(), f"{where} is not contiguous: {tuple(value.shape)}, {value.stride()}"
        else:
            assert value.stride(-1) == 1, f"{where} has gaps in its rows: {value.stride()}"


def record_kernels(monkeypatch: pytest.MonkeyPatch, *, idle: bool = False) -> None:
    """Launch Triton's kernels on the fake device; with ``idle``, only the kernels in ``CHEAP`` do something."""
    for module in MODULES:
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Launcher(kernel, not idle or name in CHEAP))
        if hasattr(module, "INTERPRETED"):
            monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(row, "WORTH", 1.0)  # choose the kernel although the library is equally fast here
