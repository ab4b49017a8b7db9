"""A stand-in for the ``flashinfer`` module on the fake device, which checks locations and copies of tensors.

The copies are those of version 0.6.4. Nothing is computed.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.fake_cuda.device.tensors import DeviceTensor, clock

STAGED = 64
HOST, DEVICE = False, True


def check(x: Tensor, device: bool, dtype: torch.dtype = torch.int32) -> None:
    """Check an index array as FlashInfer's wrappers do."""
    assert isinstance(x, DeviceTensor) is device and x.dtype == dtype and x.is_contiguous() and x.dim() == 1


class Wrapper:
    """A wrapper that plans on the host, and copies to the device from a reused staging buffer."""

    decodes = False

    def __init__(self, workspace: Tensor, kv_layout: str, *, backend: str = "auto", **buffers: Any) -> None:
        check(workspace, DEVICE, torch.uint8)
        assert kv_layout == "NHD" and not workspace.inner.any(), "split sums begin with zeros"  # type: ignore[attr-defined]
        self.use_cuda_graph = buffers.pop("use_cuda_graph", False)
        buffers.pop("use_tensor_cores", None)
        self.buffers: list[Tensor] = list(buffers.values())
        assert self.use_cuda_graph == bool(self.buffers)
        self.int_workspace = torch.empty(STAGED, dtype=torch.int64, device=workspace.device)
        self.staged = torch.empty(STAGED, dtype=torch.int64, pin_memory=True)
        self.heads = self.rows = self.keys = 0
        self.plans = 0

    def plan_arrays(self, host: list[Tensor], pages: Tensor | None) -> None:
        """Return the arrays of a plan in the order of ``buffers``; all but the pages are on the host."""
        for array in host:
            check(array, HOST)
        arrays = list(host)
        if pages is not None:
            check(pages, DEVICE)
            assert len(pages) == host[-2][-1], "the last of indptr counts the pages"
            arrays.insert(-1, pages)
        if self.use_cuda_graph:
            for buffer, array in zip(self.buffers, arrays, strict=True):
                assert array is pages or len(buffer) == len(array), "the batch size is fixed"
                buffer[: len(array)].copy_(array, non_blocking=True)
        else:
            self.buffers = [item.to(self.int_workspace.device, non_blocking=True) for item in arrays]
        assert clock.tape is None, "plans cannot be captured"
        self.plans += 1
        self.staged.fill_(self.plans)
        self.int_workspace.copy_(self.staged, non_blocking=True)

    def run(self, q: Tensor, *keys: Any, out: Tensor | None = None, **scales: float) -> Tensor:
        """Check the arguments and return zeros."""
        pools = keys[0] if isinstance(keys[0], tuple) else keys
        for item in (q, *pools):
            assert isinstance(item, DeviceTensor) and item.stride(-1) == 1
        assert q.dim() == 3 and len(q) == self.rows, (q.shape, self.rows)
        assert all(type(scale) is float for scale in scales.values())
        clock.executed["flashinfer"] += 1
        if out is None:
            return torch.zeros_like(q)
        assert isinstance(out, DeviceTensor) and out.shape == q.shape and out.dtype == q.dtype
        return out.zero_()


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """A stand-in for decode attention with one new token for each sequence."""

    def plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, *shape: int, **options: Any) -> None:
        """Plan with page arrays, then heads, key heads, width and page size."""
        self.plan_arrays([indptr, last_page_len], indices)
        self.rows = len(last_page_len)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """A stand-in for prefill attention over pages."""

    def plan(
        self, qo_indptr: Tensor, indptr: Tensor, indices: Tensor, last_page_len: Tensor, *shape: int, **options: Any
    ) -> None:
        """Plan like the decode wrapper, with the starts of each sequence's new tokens first."""
        self.plan_arrays([qo_indptr, indptr, last_page_len], indices)
        self.rows = int(qo_indptr[-1])


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """A stand-in for prefill attention over new tokens only."""

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, *shape: int, **options: Any) -> None:
        """Plan with the start of each sequence's tokens."""
        self.plan_arrays([qo_indptr, kv_indptr], None)
        self.rows = int(qo_indptr[-1])


def module() -> ModuleType:
    """Build a module named ``flashinfer``."""
    flashinfer = ModuleType("flashinfer")
    flashinfer.__spec__ = ModuleSpec("flashinfer", None)
    for kind in (
        BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
        BatchPrefillWithRaggedKVCacheWrapper,
    ):
        setattr(flashinfer, kind.__name__, kind)
    return flashinfer
