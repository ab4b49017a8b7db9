"""Environment of FlashInfer's compiler runs if the CUDA toolkit is spread over several folders.

FlashInfer takes the folder above the ``nvcc`` on the path for the toolkit and looks there for ``libcuda``,
``libcudart`` and cuRAND's headers. Often the ``nvcc`` on the path only starts another one, and the rest came as Python
packages or with the driver.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import USUAL_CUDA_HOME

LIBRARIES = ("libcuda.so", "libcudart.so")
HEADER = "curand_kernel.h"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitParts:
    """The places of a toolkit's parts that no environment variable names."""

    home: Path
    """Folder of a toolkit, which need not exist."""
    libraries: tuple[Path, ...]
    """Shared libraries that this process has loaded."""
    headers: Path | None
    """Folder of cuRAND's headers outside of a toolkit."""

    @classmethod
    def of_this_machine(cls) -> ToolkitParts:
        """Find them, once CUDA is initialised."""
        return cls(home=USUAL_CUDA_HOME, libraries=tuple(loaded_libraries()), headers=packaged_headers())


def complete_toolkit(folder: Path | None = None, parts: ToolkitParts | None = None) -> dict[str, str]:
    """Return additional environment variables for FlashInfer's compiler runs; existing values are extended.

    Call this once CUDA is initialised. The libraries that this process has loaded are linked from ``folder`` under the
    names that the linker expects, and are searched last.
    """
    parts = parts or ToolkitParts.of_this_machine()
    results: dict[str, str] = {}
    home = toolkit_home(os.environ, parts.home)
    if home is not None and not any(os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")):
        results["CUDA_HOME"] = str(home)
    links = link_libraries(parts.libraries, folder or _cache_folder())
    if links is not None:
        results["FLASHINFER_EXTRA_LDFLAGS"] = _with(os.environ, "FLASHINFER_EXTRA_LDFLAGS", f"-L{links}")
    includes = None if home is not None and (home / "include" / HEADER).is_file() else parts.headers
    if includes is not None:
        results["FLASHINFER_EXTRA_CUDAFLAGS"] = _with(os.environ, "FLASHINFER_EXTRA_CUDAFLAGS", f"-isystem {includes}")
    return results


def toolkit_home(environ: Mapping[str, str], usual: Path = USUAL_CUDA_HOME) -> Path | None:
    """Return the toolkit's folder with its compiler and headers, at last ``usual``; ``None`` if there is none."""
    named = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    compiler = shutil.which("nvcc", path=environ.get("PATH"))
    neighbours = [] if compiler is None else [Path(compiler).parent.parent, Path(compiler).resolve().parent.parent]
    for home in (*named, *neighbours, usual):
        if (home / "bin" / "nvcc").is_file() and (home / "include" / "cuda_runtime.h").is_file():
            return home
    return None


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> Iterator[Path]:
    """Return the shared libraries that this process has loaded; empty if the system does not list them."""
    try:
        lines = maps.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line and ".so" in line):
        yield Path(line)


def link_libraries(loaded: Iterable[Path], folder: Path) -> Path | None:
    """Create links in ``folder`` to the ``loaded`` libraries in ``LIBRARIES``; ``None`` if none or read-only."""
    targets = {name: path for path in loaded for name in LIBRARIES if path.name.startswith(name)}
    try:
        for name, path in targets.items():
            _link(folder / name, path)
    except OSError:
        return None
    return folder if targets else None


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)  # another process may create the same link


def packaged_headers() -> Path | None:
    """Return the folder of cuRAND's headers among NVIDIA's Python packages, which torch installs."""
    package = importlib.util.find_spec("nvidia")
    for directory in (package.submodule_search_locations or ()) if package is not None else ():
        for header in sorted(Path(directory).glob(f"*/include/{HEADER}")):
            return header.parent
    return None


def _with(environ: Mapping[str, str], name: str, flag: str) -> str:
    known = environ.get(name, "")
    return known if flag in known else f"{known} {flag}".strip()


def _cache_folder() -> Path:
    """Return a cache folder next to FlashInfer's own."""
    return (
        Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "sglang-plug" / "cuda-libraries"
    )
