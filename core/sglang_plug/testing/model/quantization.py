"""Conformance test of quantizations: products must be close to those with the original matrix."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.kernels import LinearFunction
from sglang_plug.contracts.model.quantization import Matrix, Quantization, QuantizationRequest
from sglang_plug.plugins.registry import Plugins

DTYPES = (torch.bfloat16, torch.float32)
ROWS = (1, 2, 7, 64, 65, 200)
SIZES = ((64, 96), (128, 16), (256, 320))
"""Pairs ``(in, out)`` of matrix sizes."""
BITS_TOLERANCE = 0.02
"""Part of a product's norm that numbers of 8 bits may lose, doubled with each bit less."""
ODD_SIZES = ((72, 40),)
"""Sizes that many groups and tiles do not divide; a quantization may refuse them."""
MAGNITUDES = (1e-3, 1.0, 1e3)


@torch.inference_mode()
def check_quantization(
    quantization: str | Callable[[QuantizationRequest, Any], Quantization],
    *,
    settings: Any = None,
    tolerance: float | None = None,
    bits: int = 8,
) -> None:
    """Convert ordinary weights and compare products with the exact ones, on the host, in bfloat16 and float32.

    A matrix of a size that groups and tiles do not divide may have no scheme, or be refused with ``ConfigError``.

    Args:
        quantization: its target, or the name an installed plugin declared it under.
        settings: its settings, if ``quantization`` is a target that needs some.
        tolerance: greatest difference allowed between the computed and the exact product of a token, relative to the
            latter; both are Euclidean norms. ``None``: what ``bits`` allow.
        bits: bits of a stored number. Without a tolerance, a product may be off by 0.02 times two to the power of the
            bits that are missing to 8, but at least by 0.1 and at most by 0.4: by 0.32 with 4 bits.

    Raises:
        AssertionError: names the first case that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    if tolerance is None:
        tolerance = max(0.1, min(0.4, BITS_TOLERANCE * 2.0 ** (8 - bits)))
    build = quantization
    if isinstance(build, str):
        component = Plugins.discover().get("quantization", build)
        build, settings = component.load(), component.settings()
    for dtype in DTYPES:
        made = build(QuantizationRequest(device=torch.device("cpu"), dtype=dtype), settings)
        for (size_in, size_out), bias, magnitude in product((*SIZES, *ODD_SIZES), (False, True), MAGNITUDES):
            where = f"{made.name} fails {size_in} to {size_out} in {dtype}, weights of {magnitude:g}"
            where += " with a bias" if bias else ""
            weights = _random_weight(size_in, size_out, dtype, bias, magnitude)
            try:
                linear = _packed(made, *weights, where, may_refuse=(size_in, size_out) in ODD_SIZES)
                if linear is not None:
                    _check(linear, *weights, tolerance, where)
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error


def _check(linear: LinearFunction, weight: Tensor, bias: Tensor | None, tolerance: float, where: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for rows in ROWS:
        x = torch.randn(rows, weight.shape[1], generator=generator).to(weight.dtype)
        before, output = x.clone(), linear(x)
        case = f"{where}, {rows} rows"
        assert torch.equal(x, before), f"{case}: the input was written to"
        expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        assert output.shape == expected.shape, f"{case}: found {list(output.shape)}, not {list(expected.shape)}"
        assert output.dtype == x.dtype, f"{case}: found {output.dtype}"
        assert bool((output[:, 0] == expected[:, 0]).all()), f"{case}: a row of zeros does not give the bias alone"
        error = float(((output - expected).norm(dim=1) / expected.norm(dim=1)).max())
        assert error <= tolerance, f"{case}: a product is off by {error:.2g} of its norm (allowed: {tolerance:.2g})"
    _check_unlike_rows(linear, weight, bias, tolerance, where)
    _check_layouts(linear, weight, where)


def _check_unlike_rows(
    linear: LinearFunction, weight: Tensor, bias: Tensor | None, tolerance: float, where: str
) -> None:
    """A row's product does not depend on what else is in the batch, such as rows of zeros and of large numbers."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(len(MAGNITUDES) + 1, weight.shape[1], generator=generator)
    x = (x * torch.tensor([0.0, *MAGNITUDES])[:, None]).to(weight.dtype)
    output = linear(x).double()
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert bool(output.isfinite().all()), f"{where}: the product of a row of zeros, or of its neighbours, is not finite"
    wrong = (output - expected).norm(dim=1) > tolerance * expected.norm(dim=1)
    assert not bool(wrong.any()), (
        f"{where}: row {int(wrong.nonzero()[0])} of rows that are zero and {MAGNITUDES} large is wrong: a row's result "
        "must not depend on other rows, so scales of activations are per row"
    )


def _check_layouts(linear: LinearFunction, weight: Tensor, where: str) -> None:
    """Inputs are contiguous in their last dimension only."""
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(7, 2 * weight.shape[1], generator=generator).to(weight.dtype)
    x = wide[:, weight.shape[1] :]
    output, expected = linear(x).clone(), linear(x.contiguous())
    near = torch.allclose(output.float(), expected.float(), rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
    assert near, f"{where}: the product of an input whose rows are parts of a wider tensor is another one"


def _packed(
    quantization: Quantization, weight: Tensor, bias: Tensor | None, where: str, *, may_refuse: bool
) -> LinearFunction | None:
    """Return the multiplication, which must not need the original tensors; ``None`` if the matrix is refused."""
    size_out, size_in = weight.shape
    matrix = Matrix(name="layer", checkpoint_names=("layer",), size_in=size_in, size_out=size_out, dtype=weight.dtype)
    try:
        scheme = quantization.scheme(matrix)
    except ConfigError:
        if may_refuse:
            return None
        raise
    if scheme is None and may_refuse:
        return None
    assert scheme is not None, f"{where}: there is no scheme for it"
    assert not scheme.stored, f"{where}: stored tensors are expected, but the checkpoint is not quantized"
    return scheme.pack({"weight": weight.clone()}, None if bias is None else bias.clone())


def _random_weight(
    size_in: int, size_out: int, dtype: torch.dtype, with_bias: bool, magnitude: float
) -> tuple[Tensor, Tensor | None]:
    """Return a random matrix, whose first row is zeros, and a bias."""
    generator = torch.Generator().manual_seed(size_in)
    weight = torch.randn(size_out, size_in, generator=generator) * magnitude
    weight[0] = 0
    bias = torch.randn(size_out, generator=generator) * magnitude
    return weight.to(dtype), bias.to(dtype) if with_bias else None
