"""Does a quantization multiply with nearly the matrix that it was given?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.kernels import LinearFunction
from sglang_plug.plugins import Plugins
from sglang_plug.quantization import Matrix, Quantization, QuantizationRequest

DTYPES = (torch.bfloat16, torch.float32)
ROWS = (1, 2, 7, 64, 65, 200)
SIZES = ((64, 96), (128, 16), (256, 320))
"""``(in, out)``"""
MAGNITUDES = (1e-3, 1.0, 1e3)


@torch.inference_mode()
def check_quantization(
    quantization: str | Callable[[QuantizationRequest, Any], Quantization],
    *,
    settings: Any = None,
    tolerance: float = 0.1,
) -> None:
    """Convert ordinary weights and compare products with the exact ones, on the host, in bfloat16 and float32.

    Args:
        quantization: its target, or the name an installed plugin declared it under.
        settings: its settings, where ``quantization`` is a target that wants some.
        tolerance: greatest difference allowed between the found and the exact product of a token, relative to the
            latter; both are Euclidean norms.

    Raises:
        AssertionError: names the first case that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    build = quantization
    if isinstance(build, str):
        component = Plugins.discover().get("quantization", build)
        build, settings = component.load(), component.settings()
    for dtype in DTYPES:
        made = build(QuantizationRequest(device=torch.device("cpu"), dtype=dtype), settings)
        for (size_in, size_out), bias, magnitude in product(SIZES, (False, True), MAGNITUDES):
            where = f"{made.name} fails {size_in} to {size_out} in {dtype}, weights of {magnitude:g}"
            where += " with a bias" if bias else ""
            _check(made, _filled(size_in, size_out, dtype, bias, magnitude), tolerance, where)


def _check(made: Quantization, weights: tuple[Tensor, Tensor | None], tolerance: float, where: str) -> None:
    weight, bias = weights
    linear = _packed(made, weight, bias, where)
    generator = torch.Generator().manual_seed(1)
    for rows in ROWS:
        x = torch.randn(rows, weight.shape[1], generator=generator).to(weight.dtype)
        before, found = x.clone(), linear(x)
        place = f"{where}, {rows} rows"
        assert torch.equal(x, before), f"{place}: the input was written to"
        expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        assert found.shape == expected.shape, f"{place}: found {list(found.shape)}, not {list(expected.shape)}"
        assert found.dtype == x.dtype, f"{place}: found {found.dtype}"
        assert bool((found[:, 0] == expected[:, 0]).all()), f"{place}: a row of zeros does not give the bias alone"
        error = float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())
        assert error <= tolerance, f"{place}: a product is off by {error:.2g} of its norm (allowed: {tolerance:.2g})"


def _packed(made: Quantization, weight: Tensor, bias: Tensor | None, where: str) -> LinearFunction:
    """The multiplication, of which the original may be thrown away."""
    size_out, size_in = weight.shape
    matrix = Matrix(name="layer", checkpoint_names=("layer",), size_in=size_in, size_out=size_out, dtype=weight.dtype)
    scheme = made.scheme(matrix)
    assert scheme is not None, f"{where}: there is no scheme for it"
    assert not scheme.stored, f"{where}: stored tensors are expected, but the checkpoint is not quantized"
    return scheme.pack({"weight": weight.clone()}, None if bias is None else bias.clone())


def _filled(
    size_in: int, size_out: int, dtype: torch.dtype, with_bias: bool, magnitude: float
) -> tuple[Tensor, Tensor | None]:
    """A random matrix, whose first row is zeros, and a bias."""
    generator = torch.Generator().manual_seed(size_in)
    weight = torch.randn(size_out, size_in, generator=generator) * magnitude
    weight[0] = 0
    bias = torch.randn(size_out, generator=generator) * magnitude
    return weight.to(dtype), bias.to(dtype) if with_bias else None
