"""Compilation of Triton's kernels for Hopper on a machine without a GPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_plug_backends.triton import launch

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
ALIGNMENT = 16
"""Alignment of addresses, in bytes, and of integers that Triton assumes."""
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
"""Branch instructions of PTX and of machine code."""
PTX_ACCESS = re.compile(r"\b(ld|st|red|atom|multimem|cp|tensormap)\.(?!param)")
MACHINE_ACCESS = re.compile(r"\b(LDG|LD|STG|ST|LDL|STL|RED|REDG|ATOM|ATOMG|LDGSTS|UBLKCP|UTMALDG|UTMASTG)\b")
SPILL = re.compile(r"\b(LDL|STL)\b")


def replace_kernels(
    patch: pytest.MonkeyPatch, modules: Sequence[ModuleType], replacement: Callable[[Any], Any]
) -> None:
    """Replace each kernel of ``modules``; tensors count as those of a GPU whose launches may overlap."""
    patch.setattr(launch, "can_overlap", lambda device: True)
    for module in modules:
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            patch.setattr(module, name, replacement(getattr(module, name)))
        patch.setattr(module, "runs", lambda *tensors: True, raising=False)


def compile_only(patch: pytest.MonkeyPatch, cache: Path, *modules: ModuleType) -> list[Any]:
    """Compile the kernels of ``modules`` instead of launching them; return the list of what is compiled from now on."""
    patch.setenv("TRITON_CACHE_DIR", str(cache))
    compiled: list[Any] = []
    replace_kernels(patch, modules, partial(CompileOnly, keep=compiled.append))
    return compiled


class CompileOnly:
    """Stands in for a kernel: a launch compiles it and passes the result to ``keep``."""

    def __init__(self, kernel: Any, keep: Callable[[Any], None]) -> None:
        self.kernel, self.keep = kernel, keep

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *arguments: Any, **named: Any) -> None:
        names = self.kernel.arg_names
        values = {**dict(zip(names, arguments, strict=False)), **named}
        constants = {(index,): values[name] for index, name in enumerate(names) if name.isupper()}
        options = {name: value for name, value in values.items() if name not in names}
        aligned = {
            (index,): [["tt.divisibility", ALIGNMENT]]
            for index, param in enumerate(self.kernel.params)
            if not (param.name.isupper() or param.do_not_specialize) and is_aligned(values[param.name])
        }
        source = ASTSource(self.kernel, {name: kind(name, values[name]) for name in names}, constants, aligned)
        self.keep(triton.compile(source, target=HOPPER, options=options))


def is_aligned(value: Any) -> bool:
    """Return True for arguments that a launch would mark as multiples of ``ALIGNMENT``."""
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return isinstance(number, int) and number % ALIGNMENT == 0


def kind(name: str, value: Any) -> str:
    """Return an argument's type in Triton's notation."""
    if name.isupper():
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def assert_waits_first(kernel: Any) -> None:
    """Check that nothing before the wait touches memory or branches, so that every thread waits first."""
    lines = [line.partition("//")[0].strip() for line in kernel.asm["ptx"].splitlines()]
    lines = lines[lines.index("{") :]
    _assert_first(lines, "griddepcontrol.wait", PTX_ACCESS)
    assert sum("griddepcontrol.launch_dependents" in line for line in lines) == 1
    assert kernel.metadata.launch_pdl


def assert_waits_first_as_assembled(kernel: Any, folder: Path) -> None:
    """Check the machine code like ``assert_waits_first``, and that nothing is spilled to local memory."""
    lines = machine_code(kernel, folder)
    _assert_first(lines, "ACQBULK", MACHINE_ACCESS)
    assert not any(SPILL.search(line) for line in lines)


def machine_code(kernel: Any, folder: Path) -> list[str]:
    """Return the instructions of a compiled kernel, one per line."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.nvdisasm.path, "-c", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line.endswith(";")]


def _assert_first(lines: Sequence[str], wait: str, access: re.Pattern[str]) -> None:
    indices = [index for index, line in enumerate(lines) if wait in line]
    assert len(indices) == 1, f"{len(indices)} times {wait}"
    assert lines[indices[0]].startswith(wait), "everyone waits"
    early = [line for line in lines[: indices[0]] if access.search(line) or BRANCH.match(line)]
    assert early == []
    assert any(access.search(line) for line in lines[indices[0] :]), "memory is touched afterwards"
