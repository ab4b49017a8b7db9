"""Precompilation of the FlashInfer kernels that ``benchmarks.gpu`` runs, several at a time.

Run as ``python -m benchmarks.gpu.flashinfer_build FOLDER`` on a machine without a GPU but with ``nvcc`` and
FlashInfer, to take the kernels along: the contents of ``FOLDER`` then belong into FlashInfer's own
folder, under ``data/aot``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sglang_plug_backends.flashinfer.toolkit import complete_toolkit

HOPPER = "9.0a"
TOGETHER = 4
"""Number of concurrently compiled modules; each has ten files or so."""
MODULES: tuple[tuple[str, int, str], ...] = (
    ("fa2", 64, "bfloat16"),
    ("fa3", 64, "bfloat16"),
    ("fa2", 128, "bfloat16"),
    ("fa3", 128, "bfloat16"),
    ("decode", 64, "bfloat16"),
    ("fa2", 128, "float8_e4m3fn"),
    ("fa2", 64, "float8_e4m3fn"),
    ("decode", 64, "float8_e4m3fn"),
    ("fa2", 64, "float8_e5m2"),
    ("fa2", 128, "float8_e5m2"),
    ("decode", 64, "float8_e5m2"),
)
"""Kernels, head dimension and dtype of the pool, in the order of need.

``fa2`` decodes grouped heads and reads pools in float8, ``fa3`` computes prompts, ``decode`` is for ungrouped heads.
"""


def specs() -> Iterator[Any]:
    """Return FlashInfer's descriptions of ``MODULES``, without windows and caps."""
    import torch
    from flashinfer.jit.attention.modules import gen_batch_decode_module, gen_batch_prefill_module

    half = torch.bfloat16
    for kernels, dim, name in MODULES:
        kept = getattr(torch, name)
        if kernels == "decode":
            yield gen_batch_decode_module(half, kept, half, torch.int32, dim, dim, 0, False, False)
        else:
            yield gen_batch_prefill_module(kernels, half, kept, half, torch.int32, dim, dim, 0, False, False, False)


def modules(
    device: str,
    *,
    listed: Callable[[], Iterable[Any]] = specs,
    toolkit: Callable[[], Mapping[str, str]] = complete_toolkit,
) -> dict[str, Any]:
    """Return the seconds or the error of each module; next to no time for existing ones.

    Args:
        device: the device whose driver is linked with; ``cpu`` where there is none.
        listed: returns descriptions of the modules. It is called with the environment of the compiler.
        toolkit: returns further environment variables of the compiler.
    """
    if device.startswith("cuda"):
        import torch

        torch.zeros(1, device=device)  # loads the driver's library
    os.environ.update(toolkit())
    result = compile_all(listed())
    if failed := {name: text for name, text in result.items() if isinstance(text, str)}:
        raise RuntimeError(f"{len(failed)} of {len(result)} modules were not compiled: {failed}")
    return result


def compile_all(specs: Iterable[Any]) -> dict[str, Any]:
    """Compile all ``specs`` and return by module the seconds, or the end of the compiler's message."""
    os.environ.setdefault("MAX_JOBS", str(max(1, (os.cpu_count() or 1) // (TOGETHER - 1))))
    with ThreadPoolExecutor(TOGETHER) as pool:
        return dict(pool.map(_compile, specs))


def _compile(spec: Any) -> tuple[str, float | str]:
    started = time.perf_counter()
    try:
        if not spec.is_aot:
            spec.build(verbose=False)
    except RuntimeError as error:
        return spec.name, str(error)[-500:]
    return spec.name, round(time.perf_counter() - started, 1)


def _stub(folder: Path) -> Path:
    """Create a ``libcuda.so`` to link with on machines without a driver; the real one replaces it at run time."""
    library = folder / "libcuda.so"
    command = ["c++", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library), "-x", "c++", os.devnull]
    subprocess.run(command, check=True)
    return library


def _collect(specs: Mapping[str, Any], folder: Path) -> None:
    from flashinfer.jit import env

    for name in specs:
        target = folder / name / f"{name}.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(env.FLASHINFER_JIT_DIR / name / target.name, target)


def main() -> None:
    """Compile for Hopper, and copy the libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the libraries")
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = folder.parent / f"{folder.name}-work"
    work.mkdir(exist_ok=True)
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", HOPPER)
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(work))
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = f"-Wl,--no-as-needed -L{_stub(work).parent}"
    result = modules("cpu")
    for name, seconds in result.items():
        print(f"{seconds:8.1f} s  {name}")
    _collect(result, folder)


if __name__ == "__main__":
    main()
