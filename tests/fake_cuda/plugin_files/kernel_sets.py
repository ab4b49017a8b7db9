"""A plugin with kernel sets for tests of adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sglang_plug import Kernels, KernelSpec, LowRankTable, hookimpl
from sglang_plug_backends.triton.kernel_set import build
from sglang_plug_backends.triton.lora import add_low_rank


@hookimpl
def register_kernels() -> Iterator[KernelSpec]:
    devices = frozenset({"cuda", "cpu"})
    for name, target, summary in (
        ("only-adapters", "only_adapters", "torch, but adapters by Triton"),
        ("without-capture", "without_capture", "Triton; adapters cannot be captured"),
    ):
        yield KernelSpec(name=name, target=f"{__name__}:{target}", summary=summary, devices=devices)


def only_adapters() -> Kernels:
    """Build a kernel set in which only the kernels for adapters are Triton's, because the other ones need not be
    interpreted."""
    return Kernels(name="only-adapters", add_low_rank=add_low_rank)


def without_capture() -> Kernels:
    """Build Triton's kernels with kernels for adapters that cannot be captured in graphs."""
    return replace(build(), name="without-capture", add_low_rank=_uncaptured)


def _uncaptured(x: Tensor, y: Tensor, table: LowRankTable, which: Tensor) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("not in a graph")
    add_low_rank(x, y, table, which)
