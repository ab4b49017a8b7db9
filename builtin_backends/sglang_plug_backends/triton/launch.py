"""Common parameters of all kernel launches."""

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

from sglang_plug_backends.triton.kernels.rowwise import rms_norm_kernel

from . import interpreter  # noqa: F401 - decides how the kernels below are defined

INTERPRETED = not isinstance(rms_norm_kernel, triton.JITFunction)
"""True if kernels are interpreted; Triton decides at definition, by ``TRITON_INTERPRET`` (see ``interpreter``)."""
OPTIONS: Mapping[str, Any] = MappingProxyType({"enable_fp_fusion": True, "AHEAD": False})
"""Options of every launch; fusion is stated, as Triton's default depends on its version."""
OVERLAPPING: Mapping[str, Any] = MappingProxyType({**OPTIONS, "AHEAD": True, "launch_pdl": True})
"""Options of launches that start while the previous ones end; see ``kernels_ahead``."""
MIN_FOR_OVERLAP = (9, 0)
"""Minimum compute capability for dependent launches."""
MIN_FOR_E4M3 = (8, 9)
"""Minimum compute capability for Triton's conversion of float8_e4m3fn."""


def launch_options(device: torch.device, overlap: bool) -> Mapping[str, Any]:
    """Return the options of kernel launches on ``device``; ``overlap``: start while the previous one ends."""
    return OVERLAPPING if overlap and can_overlap(device) else OPTIONS


@cache
def can_overlap(device: torch.device) -> bool:
    """Return True if GPU and Triton support programmatic dependent launches."""
    if device.type != "cuda" or torch.version.hip is not None or not isinstance(rms_norm_kernel, triton.JITFunction):
        return False
    return supports_overlap() and torch.cuda.get_device_capability(device) >= MIN_FOR_OVERLAP


def supports_overlap(compiler: str = "triton.backends.nvidia.compiler") -> bool:
    """Return True if the module ``compiler`` of Triton supports them; older ones do not know the option."""
    try:
        options = importlib.import_module(compiler).CUDAOptions
    except (ImportError, AttributeError):
        return False
    return "launch_pdl" in {field.name for field in dataclasses.fields(options)}


def runs(*tensors: Tensor) -> bool:
    """Return True if a kernel can be launched on ``tensors``: on a GPU or in the interpreter, and not empty."""
    return all((tensor.is_cuda or INTERPRETED) and tensor.numel() > 0 for tensor in tensors)


def reads(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if a kernel on ``device`` can convert numbers of ``dtype``: older GPUs have no float8_e4m3fn."""
    if dtype != torch.float8_e4m3fn or device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) >= MIN_FOR_E4M3


def writes(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if a kernel on ``device`` can round to ``dtype``; the interpreter cannot, to float8."""
    return reads(dtype, device) and not (INTERPRETED and dtype.itemsize == 1)


def precision(dtype: torch.dtype) -> str:
    """Return ``"ieee"`` for float32 products, which the interpreter needs because it reads bfloat16 as an integer."""
    return "ieee" if dtype == torch.float32 or (INTERPRETED and dtype == torch.bfloat16) else "tf32"


def power_of_two(length: int) -> int:
    """Return the smallest power of two that is not below ``length``."""
    return 1 << max(0, length - 1).bit_length()
