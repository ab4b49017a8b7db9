"""Matrices stored as codes of few bits, for quantizations that make them and kernel sets that multiply by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

HALF_BYTE = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A matrix ``[out, in]`` in four or eight bits, whose numbers are ``(code - zero) * scale``.

    Each row has a scale, and a zero, for every ``group`` columns. Codes are unsigned integers, or floating-point
    numbers in e4m3, which have no zero. All tensors are contiguous.
    """

    codes: Tensor
    """``[out, in]`` uint8 or float8_e4m3fn; with four bits ``[out, in / 2]`` uint8, the lower half of a byte first."""
    scale: Tensor
    """``[out, ceil(in / group)]``, floating-point of any dtype."""
    zero: Tensor | None = None
    """Like ``scale``, uint8; ``None`` if codes are floating-point."""
    group: int
    """Number of columns that share a scale."""
    bits: Literal[4, 8] = 8

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for tensors whose shapes do not fit together, or that are not contiguous."""
        rows, columns = self.shape
        expected = (rows, -(-columns // self.group))
        for name, tensor in (("scale", self.scale), ("zero", self.zero)):
            if tensor is not None and tuple(tensor.shape) != expected:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, and not {expected}")
        for name, tensor in (("codes", self.codes), ("scale", self.scale), ("zero", self.zero)):
            if tensor is not None and not tensor.is_contiguous():
                raise ValueError(f"{name} is not contiguous: shape {tuple(tensor.shape)}, strides {tensor.stride()}")
        if (self.zero is None) != self.codes.is_floating_point():
            raise ValueError(f"codes in {self.codes.dtype} {'need a' if self.zero is None else 'have no'} zero")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        rows, columns = self.codes.shape
        return rows, columns * 8 // self.bits

    def dense(self, dtype: torch.dtype, rows: slice = slice(None)) -> Tensor:
        """Return the matrix, or some of its rows, ``[rows, in]``, computed in float32 and rounded once."""
        codes, scale = self.codes[rows], self.scale[rows].float()
        if self.bits == 4:
            codes = torch.stack((codes & HALF_BYTE, codes >> 4), -1).flatten(1)
        numbers, columns = codes.float(), codes.shape[1]
        if self.zero is not None:
            numbers = numbers.sub_(_spread(self.zero[rows].float(), self.group, columns))
        return numbers.mul_(_spread(scale, self.group, columns)).to(dtype)


def _spread(numbers: Tensor, group: int, columns: int) -> Tensor:
    """Repeat the number of each group for its columns."""
    return numbers if numbers.shape[1] == 1 else numbers.repeat_interleave(group, 1)[:, :columns]
