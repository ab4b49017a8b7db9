"""Compiles Triton's kernels for Hopper where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class CompileOnly:
    """Stands in for a kernel: a launch compiles it, and hands what came of it to ``keep``."""

    def __init__(self, kernel: Any, keep: Callable[[Any], None]) -> None:
        self.kernel, self.keep = kernel, keep

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *arguments: Any, **named: Any) -> None:
        names = self.kernel.arg_names
        values = {**dict(zip(names, arguments, strict=False)), **named}
        constants = {(place,): values[name] for place, name in enumerate(names) if name.isupper()}
        options = {name: value for name, value in values.items() if name not in names}
        source = ASTSource(self.kernel, {name: kind(name, values[name]) for name in names}, constants)
        self.keep(triton.compile(source, target=HOPPER, options=options))


def kind(name: str, value: Any) -> str:
    """An argument's type as Triton writes it."""
    if name.isupper():
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"
