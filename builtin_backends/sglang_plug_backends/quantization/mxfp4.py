"""Reader of checkpoints with MXFP4 experts (Open Compute Project, 2023): four bits, 32 numbers share an exponent.

They are converted to ordinary weights at load time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sglang_plug import (
    ConfigError,
    LinearFunction,
    LinearScheme,
    Matrix,
    Quantization,
    QuantizationRequest,
    StoredTensor,
)

GROUP = 32
"""Numbers that share an exponent."""
BYTES = GROUP // 2
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the three low bits; the fourth bit is the sign."""
BIAS = 127
"""Exponent bias."""


def build(request: QuantizationRequest, settings: Any = None) -> Quantization:
    """Build the reader. Raises ``ConfigError`` for a checkpoint that is not in MXFP4."""
    method = (request.stored or {}).get("quant_method")
    if method != "mxfp4":
        raise ConfigError(f"--quantization mxfp4 reads checkpoints whose quant_method is 'mxfp4', and not {method!r}")
    return Quantization(name="mxfp4", scheme=partial(_scheme, request=request))


def _scheme(matrix: Matrix, request: QuantizationRequest) -> LinearScheme | None:
    """Return the scheme of experts; all other weights are stored unquantized."""
    if matrix.role != "experts":
        return None
    if matrix.size_in % GROUP:
        raise ConfigError(f"{matrix.name!r} has {matrix.size_in} columns: in MXFP4 they must be a multiple of {GROUP}")
    groups = matrix.size_in // GROUP
    numbers = partial(_numbers, dtype=matrix.dtype)

    def pack(held: Mapping[str, Tensor], bias: Tensor | None) -> LinearFunction:
        return request.kernels.pack_linear(numbers(held), bias)

    return LinearScheme(
        pack=pack,
        dense=numbers,
        stored={
            "blocks": StoredTensor(shape=(matrix.size_out, groups, BYTES), dtype=torch.uint8, inner=1, columns=GROUP),
            "scales": StoredTensor(shape=(matrix.size_out, groups), dtype=torch.uint8, inner=1, columns=GROUP),
        },
    )


def _numbers(held: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Decode to ``[out, in]``: the lower half of each byte precedes its upper half."""
    blocks, exponents = held["blocks"], held["scales"].int() - BIAS
    table = torch.tensor(
        [*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)], dtype=torch.float32, device=blocks.device
    )
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).int()
    return torch.ldexp(table[codes], exponents[..., None, None]).flatten(1).to(dtype)
