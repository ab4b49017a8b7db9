"""What the launches of all kernels have in common."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import triton
from torch import Tensor

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .kernels_rows import rms_norm_kernel

INTERPRETED = not isinstance(rms_norm_kernel, triton.JITFunction)
"""Triton decides when a kernel is defined, by ``TRITON_INTERPRET``; see ``interpreter``."""
OPTIONS: Mapping[str, Any] = MappingProxyType({"enable_fp_fusion": True, "AHEAD": False})
"""Of every launch; fusion is stated, as Triton's default depends on its version."""
OVERLAPPING: Mapping[str, Any] = MappingProxyType({**OPTIONS, "AHEAD": True, "launch_pdl": True})
"""Of launches that start while those before them end; see ``kernels_ahead``."""
LEAST_FOR_OVERLAP = (9, 0)
"""Compute capability from which on kernels can wait for those before them."""
LEAST_FOR_E4M3 = (8, 9)
"""Compute capability from which on Triton converts float8_e4m3fn."""


def launch_options(device: torch.device, overlap: bool) -> Mapping[str, Any]:
    """What every launch of a kernel on ``device`` is given; ``overlap``: let it start while the one before ends."""
    return OVERLAPPING if overlap and can_overlap(device) else OPTIONS


@cache
def can_overlap(device: torch.device) -> bool:
    """True if GPU and Triton know programmatic dependent launches."""
    if device.type != "cuda" or torch.version.hip is not None or not isinstance(rms_norm_kernel, triton.JITFunction):
        return False
    return knows_overlap() and torch.cuda.get_device_capability(device) >= LEAST_FOR_OVERLAP


def knows_overlap() -> bool:
    """True if this Triton has them; older ones do not know the option."""
    try:
        options = importlib.import_module("triton.backends.nvidia.compiler").CUDAOptions
    except (ImportError, AttributeError):
        return False
    return "launch_pdl" in {one.name for one in dataclasses.fields(options)}


def runs(*tensors: Tensor) -> bool:
    """True if a kernel can be launched on ``tensors``: on a GPU or in the interpreter, and not on nothing."""
    return all((one.is_cuda or INTERPRETED) and one.numel() > 0 for one in tensors)


def reads(dtype: torch.dtype, device: torch.device) -> bool:
    """True if a kernel on ``device`` can convert numbers of ``dtype``: older GPUs have no float8_e4m3fn."""
    if dtype != torch.float8_e4m3fn or device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) >= LEAST_FOR_E4M3


def writes(dtype: torch.dtype, device: torch.device) -> bool:
    """True if a kernel on ``device`` can round to ``dtype``; the interpreter cannot, to float8."""
    return reads(dtype, device) and not (INTERPRETED and dtype.itemsize == 1)


def precision(dtype: torch.dtype) -> str:
    """``"ieee"``: products in float32. The interpreter needs it, as it takes bfloat16 for an integer."""
    return "ieee" if dtype == torch.float32 or (INTERPRETED and dtype == torch.bfloat16) else "tf32"


def power_of_two(length: int) -> int:
    """The smallest power of two that is not below ``length``."""
    return 1 << max(0, length - 1).bit_length()
