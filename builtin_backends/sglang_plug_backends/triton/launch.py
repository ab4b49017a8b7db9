"""What the launches of all kernels have in common."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .kernels_rows import rms_norm_kernel

INTERPRETED = not isinstance(rms_norm_kernel, triton.JITFunction)
"""Triton decides when a kernel is defined, by ``TRITON_INTERPRET``; see ``interpreter``."""
COMPILATION: dict[str, Any] = {"enable_fp_fusion": True}
"""Stated, as Triton's default depends on its version."""
LEAST_FOR_E4M3 = (8, 9)
"""Compute capability from which on Triton converts float8_e4m3fn."""


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
