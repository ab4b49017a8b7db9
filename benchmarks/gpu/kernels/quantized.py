"""Quantized weights on the device: correctness of products, and gain over bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common.models import BYTES, SHAPES
from benchmarks.gpu.kernels.ceilings import copy_bandwidth, median_seconds
from benchmarks.gpu.kernels.correctness import BOUNDS, relative_error
from sglang_plug.contracts.model.kernels import TORCH, Kernels
from sglang_plug.ops.quantized_weight import QuantizedWeight
from sglang_plug_backends.quantization.matmul import pack_quantized

Kind = Literal["4", "8", "e4m3"]
KINDS: tuple[Kind, ...] = ("4", "8", "e4m3")
SIZES = ((64, 128, 32), (130, 512, 128), (31, 256, 256), (40, 200, 200), (6144, 4096, 128), (4096, 14_336, 64))
"""Sizes of the checked matrices: output features, input features, and weights per scale."""
HEIGHTS = (1, 3, 16, 17, 64, 65, 300)
ROWS = (1, 8, 32, 64, 256, 2048)
"""Numbers of rows of timed products."""
GROUP = 128


def random_weight(kind: Kind, size_out: int, size_in: int, group: int, device: str) -> QuantizedWeight:
    """Return a random quantized matrix with values of about one."""
    groups = -(-size_in // group)
    scale = torch.rand(size_out, groups, device=device) + 0.5
    if kind == "e4m3":
        codes = torch.randn(size_out, size_in, device=device).to(torch.float8_e4m3fn)
        return QuantizedWeight(codes=codes, scale=scale, group=group)
    levels = 1 << int(kind)
    half = (scale / levels).half()
    zero = torch.randint(0, levels, (size_out, groups), dtype=torch.uint8, device=device)
    if kind == "8":
        codes = torch.randint(0, levels, (size_out, size_in), dtype=torch.uint8, device=device)
        return QuantizedWeight(codes=codes, scale=half, zero=zero, group=group)
    codes = torch.randint(0, 256, (size_out, size_in // 2), dtype=torch.uint8, device=device)
    return QuantizedWeight(codes=codes, scale=half, zero=zero, group=group, bits=4)


@torch.inference_mode()
def quantized_products(
    device: str, *, sizes: Sequence[tuple[int, int, int]] = SIZES, kernels: Kernels | None = None
) -> dict[str, float]:
    """Return the largest relative error for each kind of quantization and dtype; raises if one is too large.

    ``kernels`` are the default ones of the device unless given.
    """
    torch.manual_seed(13)
    kernels, worst = kernels or kernels_of(device), dict[str, float]()
    for kind in KINDS:
        for dtype, bound in BOUNDS.items():
            for size, rows, error in _errors(kind, dtype, device, sizes, kernels):
                if not error <= bound:
                    raise AssertionError(
                        f"{kind} in {dtype} of {size}, {rows} rows: relative error {error:.2e}, more than {bound}"
                    )
                worst[f"{kind} {dtype}"] = max(worst.get(f"{kind} {dtype}", 0.0), error)
    return worst


@torch.inference_mode()
def quantized_speed(device: str, *shapes: str, heights: Sequence[int] = ROWS) -> dict[str, Any]:
    """Time products by matrix, kind of quantization and number of rows, next to bfloat16 and the limit."""
    bandwidth, kernels, result = copy_bandwidth(device), kernels_of(device), dict[str, Any]()
    for name in shapes:
        shape = SHAPES[name]
        for matrix, (size_out, size_in) in {
            "gate and up": (2 * shape.intermediate, shape.hidden),
            "down": (shape.hidden, shape.intermediate),
        }.items():
            plain = torch.randn(size_out, size_in, device=device, dtype=torch.bfloat16)
            for kind in KINDS:
                weight = random_weight(kind, size_out, size_in, GROUP, device)
                linear = pack_quantized(weight, None, torch.bfloat16, kernels)
                for rows in heights:
                    x = torch.randn(rows, size_in, device=device, dtype=torch.bfloat16)
                    seconds = median_seconds(lambda linear=linear, x=x: linear(x), device)
                    library = median_seconds(lambda plain=plain, x=x: F.linear(x, plain), device)
                    min_seconds = size_out * size_in * BYTES * weight.bits / 16 / bandwidth
                    result[f"{name}, {matrix}, {kind}, {rows} rows"] = {
                        "seconds": seconds,
                        "times_as_fast": library / seconds,
                        "share_of_limit": min_seconds / seconds,
                    }
    return result


def _errors(
    kind: Kind, dtype: torch.dtype, device: str, sizes: Sequence[tuple[int, int, int]], kernels: Kernels
) -> Iterator[tuple[tuple[int, int, int], int, float]]:
    """Yield size, rows, and relative error against the definition in float64."""
    for size in sizes:
        weight = random_weight(kind, *size, device)
        bias = torch.randn(size[0], device=device).to(dtype)
        linear, exact = pack_quantized(weight, bias, dtype, kernels), weight.dense(torch.float32).double()
        for rows in HEIGHTS:
            x: Tensor = torch.randn(rows, size[1], device=device).to(dtype)
            yield size, rows, relative_error(linear(x), F.linear(x.double(), exact, bias.double()))


def kernels_of(device: str) -> Kernels:
    """Return the default kernel set of a GPU."""
    if not device.startswith("cuda"):
        return TORCH
    from sglang_plug_backends.triton.kernel_set import build  # only where Triton is

    return build()
