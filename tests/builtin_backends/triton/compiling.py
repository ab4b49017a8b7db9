"""Compiles Triton's kernels for Hopper where there is no GPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
ALIGNMENT = 16
"""What Triton tells its compiler of addresses, in bytes, and of whole numbers."""
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


BRANCH = re.compile(r"(@!?%?U?P?\w+ +)?(bra|brx|brkpt|call|ret|exit|jmp|bssy|warpsync|nanosleep)\b", re.IGNORECASE)
"""Of PTX and of machine code."""
PTX_ACCESS = re.compile(r"\b(ld|st|red|atom|multimem|cp|tensormap)\.(?!param)")
MACHINE_ACCESS = re.compile(r"\b(LDG|LD|STG|ST|LDL|STL|RED|REDG|ATOM|ATOMG|LDGSTS|UBLKCP|UTMALDG|UTMASTG)\b")
SPILL = re.compile(r"\b(LDL|STL)\b")


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
        aligned = {
            (place,): [["tt.divisibility", ALIGNMENT]]
            for place, one in enumerate(self.kernel.params)
            if not (one.name.isupper() or one.do_not_specialize) and is_aligned(values[one.name])
        }
        source = ASTSource(self.kernel, {name: kind(name, values[name]) for name in names}, constants, aligned)
        self.keep(triton.compile(source, target=HOPPER, options=options))


def is_aligned(value: Any) -> bool:
    """True for what a launch would tell the compiler is a multiple of ``ALIGNMENT``."""
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return isinstance(number, int) and number % ALIGNMENT == 0


def kind(name: str, value: Any) -> str:
    """An argument's type as Triton writes it."""
    if name.isupper():
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def assert_waits_first(kernel: Any) -> None:
    """Nothing before the wait touches memory or branches, so that every thread waits before it reads or writes."""
    lines = [line.partition("//")[0].strip() for line in kernel.asm["ptx"].splitlines()]
    lines = lines[lines.index("{") :]
    _assert_first(lines, "griddepcontrol.wait", PTX_ACCESS)
    assert sum("griddepcontrol.launch_dependents" in line for line in lines) == 1
    assert kernel.metadata.launch_pdl


def assert_waits_first_as_assembled(kernel: Any, folder: Path) -> None:
    """As ``assert_waits_first``, of the machine code; and nothing is spilled to local memory."""
    lines = machine_code(kernel, folder)
    _assert_first(lines, "ACQBULK", MACHINE_ACCESS)
    assert not any(SPILL.search(line) for line in lines)


def machine_code(kernel: Any, folder: Path) -> list[str]:
    """Instructions of a compiled kernel, one a line."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.nvdisasm.path, "-c", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line.endswith(";")]


def _assert_first(lines: Sequence[str], wait: str, access: re.Pattern[str]) -> None:
    places = [place for place, line in enumerate(lines) if wait in line]
    assert len(places) == 1, f"{len(places)} times {wait}"
    assert lines[places[0]].startswith(wait), "everyone waits"
    early = [line for line in lines[: places[0]] if access.search(line) or BRANCH.match(line)]
    assert early == []
    assert any(access.search(line) for line in lines[places[0] :]), "memory is touched afterwards"
