"""Matrices kept as codes of few bits: quantizations make them, and kernel sets multiply by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

HALF_BYTE = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedWeight:
    """A matrix ``[out, in]`` in four or eight bits: a number is ``(code - zero) * scale``.

    Each row has a scale, and a zero, for every ``group`` columns. Codes are whole numbers without sign, or
    floating-point numbers in e4m3, which have no zero. All tensors are contiguous.
    """

    codes: Tensor
    """``[out, in]`` uint8 or float8_e4m3fn; of four bits ``[out, in / 2]`` uint8, the lower half of a byte first."""
    scale: Tensor
    """``[out, ceil(in / group)]``, floating-point of any dtype."""
    zero: Tensor | None = None
    """Like ``scale``, uint8; ``None`` if codes are floating-point."""
    group: int
    """Columns that one scale is for."""
    bits: Literal[4, 8] = 8

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for tensors that do not fit together, or have gaps."""
        rows, columns = self.shape
        expected = (rows, -(-columns // self.group))
        for name, one in (("scale", self.scale), ("zero", self.zero)):
            if one is not None and tuple(one.shape) != expected:
                raise ValueError(f"{name} has shape {tuple(one.shape)}, and not {expected}")
        for name, one in (("codes", self.codes), ("scale", self.scale), ("zero", self.zero)):
            if one is not None and not one.is_contiguous():
                raise ValueError(f"{name} is not contiguous: shape {tuple(one.shape)}, strides {one.stride()}")
        if (self.zero is None) != self.codes.is_floating_point():
            raise ValueError(f"codes in {self.codes.dtype} {'need a' if self.zero is None else 'have no'} zero")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        rows, columns = self.codes.shape
        return rows, columns * 8 // self.bits

    def dense(self, dtype: torch.dtype, rows: slice = slice(None)) -> Tensor:
        """The matrix, or some of its rows, ``[rows, in]``: computed in float32 and rounded once."""
        codes, scale = self.codes[rows], self.scale[rows].float()
        if self.bits == 4:
            codes = torch.stack((codes & HALF_BYTE, codes >> 4), -1).flatten(1)
        numbers, columns = codes.float(), codes.shape[1]
        if self.zero is not None:
            numbers = numbers.sub_(_spread(self.zero[rows].float(), self.group, columns))
        return numbers.mul_(_spread(scale, self.group, columns)).to(dtype)


def _spread(found: Tensor, group: int, columns: int) -> Tensor:
    """One number for each of ``columns``."""
    return found if found.shape[1] == 1 else found.repeat_interleave(group, 1)[:, :columns]
