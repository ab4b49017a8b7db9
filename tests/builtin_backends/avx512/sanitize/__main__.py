"""Run the compiled kernels under AddressSanitizer and UndefinedBehaviorSanitizer: ``python -m`` this package.

Needs ``g++`` with its sanitizers. Ends with status 0 and a message where the CPU lacks the instructions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sglang_plug_backends.avx512.library import FLAGS, INSTRUCTIONS, SOURCES

DRIVER = Path(__file__).parent
COMPILER = "g++"
TIMEOUT = 600.0
"""Timeout of the checks in seconds on a shared machine."""
CHECKED = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
DRIVER_FLAGS = ("-std=c++17", "-O2", "-g", "-fopenmp", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
DRIVER_FLAGS += ("-mavx512bf16", "-mavx512vnni", "-ffp-contract=off")
NOT_HERE = {"-O3", "-shared", "-fno-exceptions", "-fno-rtti"}
"""Flags of the library that the checked build omits."""


def main() -> int:
    """Build and run the checks; return their exit status."""
    missing = lacking(Path("/proc/cpuinfo"))
    if missing:
        print(f"sanitize: skipped, the CPU lacks {', '.join(missing)}")
        return 0
    if shutil.which(COMPILER) is None:
        print(f"sanitize: {COMPILER} is not installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="sanitize-") as folder:
        program = build(Path(folder))
        if program is None:
            return 1
        options = {"ASAN_OPTIONS": "detect_stack_use_after_return=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
        # spinning idle threads would take the cores from working threads
        environment = {**options, **os.environ, "OMP_WAIT_POLICY": "passive"}
        return subprocess.run([program], env=environment, timeout=TIMEOUT, check=False).returncode


def build(folder: Path) -> Path | None:
    """Compile the program file by file on all cores; return ``None`` and the compiler's message on failure."""
    kernels = [flag for flag in FLAGS if flag not in NOT_HERE]
    jobs = [(path, [*kernels, *CHECKED]) for path in sorted(SOURCES.glob("*.cpp"))]
    jobs += [(path, [*DRIVER_FLAGS, f"-I{SOURCES}"]) for path in sorted(DRIVER.glob("*.cpp"))]

    def compiled(index: int) -> Path | None:
        path, flags = jobs[index]
        object_file = folder / f"{index}-{path.stem}.o"
        return object_file if run([COMPILER, *flags, "-c", str(path), "-o", str(object_file)]) else None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, range(len(jobs))))
    if None in objects:
        return None
    program = folder / "checks"
    linked = run([COMPILER, "-fopenmp", *CHECKED, *map(str, objects), "-o", str(program)])
    return program if linked else None


def run(command: list[str]) -> bool:
    """Return whether ``command`` succeeded; show its output if not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    return done.returncode == 0


def lacking(cpuinfo: Path) -> list[str]:
    """Return the required instructions that the CPU lacks."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return list(INSTRUCTIONS)
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return [name for name in INSTRUCTIONS if name not in flags]


if __name__ == "__main__":
    sys.exit(main())
