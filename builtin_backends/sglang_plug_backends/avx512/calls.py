"""The argument structures of the library: one layer's attention, and recorded calls that are replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sglang_plug import CannotCaptureError

from .library import RECORDED

POINTER, LONG = ctypes.c_void_p, ctypes.c_int64


def dense(x: Tensor) -> Tensor:
    """Return ``x`` ``[T, heads, dim]`` with the heads of a token contiguous; tokens may have any stride."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


class AttentionCall(ctypes.Structure):
    """The structure ``Attention`` of ``source/attention.h``."""

    _fields_ = (
        *((name, POINTER) for name in ("slots", "tables", "starts", "queries", "lengths")),
        *((name, LONG) for name in ("tokens", "sequences", "table_width")),
        *((name, LONG) for name in ("heads", "kv_heads", "dim", "value_dim", "values_in_keys")),
        *((name, POINTER) for name in ("q", "k", "v")),
        *((name, LONG) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, POINTER) for name in ("pool_k", "pool_v")),
        *((name, LONG) for name in ("pool_k_stride", "pool_v_stride", "pool_v_head")),
        ("out", POINTER),
        *((name, LONG) for name in ("causal", "window")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


class ConvolutionCall(ctypes.Structure):
    """The structure ``Convolution`` of ``source/recurrent.h``."""

    _fields_ = (
        *((name, POINTER) for name in ("rows", "starts")),
        *((name, LONG) for name in ("sequences", "channels", "width", "x_stride")),
        *((name, POINTER) for name in ("x", "weight", "bias", "states", "out")),
    )


class RecurrenceCall(ctypes.Structure):
    """The structure ``Recurrence`` of ``source/recurrent.h``."""

    _fields_ = (
        *((name, POINTER) for name in ("rows", "starts")),
        *((name, LONG) for name in ("sequences", "key_heads", "heads", "dim", "value_dim")),
        *((name, POINTER) for name in ("q", "k", "v")),
        *((name, LONG) for name in ("q_stride", "k_stride", "v_stride", "wide_keys", "wide_values")),
        *((name, POINTER) for name in ("decay", "rate", "states", "out")),
    )


class SelectiveScanCall(ctypes.Structure):
    """The structure ``SelectiveScan`` of ``source/recurrent.h``."""

    _fields_ = (
        *((name, POINTER) for name in ("rows", "starts")),
        *((name, LONG) for name in ("sequences", "channels", "size")),
        *((name, POINTER) for name in ("x", "b", "c")),
        *((name, LONG) for name in ("x_stride", "b_stride", "c_stride", "wide_x", "wide_b", "wide_c")),
        *((name, POINTER) for name in ("step", "rates", "states", "out")),
    )


DESCRIBED: Mapping[str, type[ctypes.Structure]] = {
    "attend": AttentionCall,
    "causal_conv": ConvolutionCall,
    "recurrence": RecurrenceCall,
    "selective_scan": SelectiveScanCall,
}
"""The structure at the address that is a function's only argument, by the function's name."""


NO_WORD = -1
"""``rows_word`` of a call that is replayed as it was recorded."""


class RecordedCall(ctypes.Structure):
    """The structure ``Call`` of ``source/tape.cpp``."""

    _fields_ = (
        ("function", LONG),
        ("words", LONG * 10),
        ("real", ctypes.c_double),
        ("rows_word", LONG),
        ("rows_per_token", LONG),
    )

    @classmethod
    def of(cls, name: str, arguments: Sequence[Any]) -> RecordedCall:
        """Build a call of ``name`` with addresses, integers and at most one floating-point number.

        Raises ``CannotCaptureError`` for a function that is not one of ``RECORDED``.
        """
        if name not in RECORDED:
            raise CannotCaptureError(f"{name} of the kernels avx512 cannot be recorded")
        reals = [argument for argument in arguments if isinstance(argument, float)]
        words = [argument or 0 for argument in arguments if not isinstance(argument, float)]
        return cls(RECORDED.index(name), (LONG * 10)(*words), *(reals or (0.0,)), NO_WORD)


class Tape:
    """A list of calls that one call of the library replays in order.

    Structures in ``DESCRIBED`` are copied, because the next layer's call may overwrite them.
    """

    def __init__(self) -> None:
        self._calls: list[RecordedCall] = []
        self._kept: list[ctypes.Structure] = []

    def add(self, name: str, arguments: Sequence[Any], *, rows_word: int = NO_WORD, rows_per_token: int = 0) -> None:
        """Append a call. The memory that its addresses point to must not move.

        ``rows_word``: index of the argument that is ``rows_per_token`` times the number of tokens, if there is one.
        """
        if (described := DESCRIBED.get(name)) is not None:
            copied = described.from_buffer_copy(described.from_address(arguments[0]))
            self._kept.append(copied)
            arguments = (ctypes.addressof(copied),)
        call = RecordedCall.of(name, arguments)
        call.rows_word, call.rows_per_token = rows_word, rows_per_token
        self._calls.append(call)

    def __len__(self) -> int:
        return len(self._calls)

    def packed(self) -> ctypes.Array[RecordedCall]:
        """Return the calls as one array for ``replay``; the tape must be kept alive as long."""
        return (RecordedCall * len(self._calls))(*self._calls)
