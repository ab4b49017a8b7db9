"""``sglang-plug env``: a report on this machine and installation, to paste into an issue."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_plug import Plugins
from sglang_plug.plugins.flags import ENVIRONMENT_PREFIX
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug_api.options.hidden_values import shown

from .version import installed_version, versions

LIBRARIES = (
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "xgrammar",
    "llguidance",
    "outlines-core",
    "triton",
    "flashinfer-python",
    "fastapi",
    "uvicorn",
    "pydantic",
    "numpy",
)
"""Distributions whose versions matter, besides those of ``sglang-plug version``."""
VARIABLES = (
    ENVIRONMENT_PREFIX,
    *("CUDA_", "HF_", "NCCL_", "OMP_", "TORCH_", "TRITON_", "TRANSFORMERS_", "LD_LIBRARY_PATH"),
)
"""Beginnings of the names of environment variables that change what the server does."""
GIB = 1 << 30
DRIVER_SECONDS = 20
Report = dict[str, dict[str, str]]
"""Maps the titles of sections to their rows."""


class EnvCommand:
    """The command, which prints sections of names and values, or JSON."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add ``--json``."""
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print the report; always succeeds, because what cannot be read is said in it."""
        report = environment_report(plugins, os.environ)
        print(json.dumps(report, indent=2) if options.json else "\n\n".join(_section(*item) for item in report.items()))
        return 0


def environment_report(plugins: Plugins, variables: Mapping[str, str]) -> Report:
    """Return the report. Values of environment variables that may be secret are hidden."""
    others = [plugin for plugin in plugins.loaded if plugin.distribution != DISTRIBUTION]
    return {
        "versions": {**versions(), **{name: installed_version(name) for name in LIBRARIES}},
        "system": dict(_system()),
        "torch": dict(_torch()),
        "devices": dict(_driver()),
        "plugins of others": {plugin.name: plugin.origin for plugin in others},
        "plugins that fail": {failure.plugin.name: failure.message for failure in plugins.failures},
        "environment": dict(_variables(variables)),
    }


def _section(title: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows), default=0)
    lines = [f"  {name:<{width}}  {value}".rstrip() for name, value in rows.items()]
    return "\n".join([title, *(lines or ["  none"])])


def _system() -> Iterator[tuple[str, str]]:
    yield "platform", platform.platform()
    yield "processor", _processor()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{cores} usable of {os.cpu_count()}"
    yield "memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIB:.1f} GiB"
    yield "free disk", f"{shutil.disk_usage(Path.cwd()).free / GIB:.1f} GiB in the current folder"
    yield "C++ compiler", next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), "none")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{models[0] if models else platform.machine()} ({', '.join(wide) or 'no wide vectors'})"


def _torch() -> Iterator[tuple[str, str]]:
    try:
        torch: Any = importlib.import_module("torch")  # by name: only the engine depends on it, and this may fail
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        yield "import", f"FAILED: {error}"
        return
    yield "built for CUDA", str(torch.version.cuda or "no")
    yield "CUDA available", str(torch.cuda.is_available())
    yield "CPU capability", torch.backends.cpu.get_cpu_capability()
    yield "threads", str(torch.get_num_threads())
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}", f"{device.name}, {device.major}.{device.minor}, {device.total_memory / GIB:.1f} GiB"


def _driver() -> Iterator[tuple[str, str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield "nvidia-smi", "not installed"
        return
    query = [program, "--query-gpu=index,name,driver_version,memory.total,memory.used", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=DRIVER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield "nvidia-smi", f"FAILED: {error}"
        return
    for line in done.stdout.splitlines():
        index, _, text = line.partition(", ")
        yield f"GPU {index}", text


def _variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(variables):
        if name.startswith(VARIABLES):
            yield name, shown(name, variables[name])


command = EnvCommand()
