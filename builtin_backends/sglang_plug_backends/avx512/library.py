"""The compiled kernels: built once with the system's C++ compiler, cached in the user's folder, loaded by ctypes.

The sources include only the compiler's own headers. They use OpenMP through the library that torch has already loaded,
so that kernels and torch share their threads.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from sglang_plug import ConfigError
from sglang_plug.system.private_folder import private_folder, scratch_folder
from sglang_plug_backends.progress_line import ProgressLine, bar

SOURCES = Path(__file__).parent / "source"
COMPILED = Path(__file__).parent / "compiled"
"""Folder for a library that is installed with the package, as in images: ``python -m sglang_plug_backends.avx512``."""
COMPILERS = ("g++", "c++", "clang++")
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni")
FLAGS = (
    "-std=c++17",
    "-O3",
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mavx512vnni", "-mfma"),
    *("-mtune=native", "-fopenmp", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    *("-shared", "-fPIC", "-w"),
)
LIBRARIES = ("-nodefaultlibs", "-lc", "-lm", "-lgcc")
"""Linked libraries, without OpenMP: its symbols come from the library that torch has loaded."""
MAX_COMPILERS = 4
"""Maximum number of compilers that run at a time; each takes about 500 MB of memory."""
TIMEOUT_SECONDS = 300.0
"""Timeout of the compiler in seconds."""
RECORDED = (
    *("linear", "linear_int8", "linear_codes4", "linear_codes8", "linear_e4m3"),
    *("rms_norm", "silu_mul", "rope", "attend", "causal_conv", "recurrence", "selective_scan"),
)
"""Functions whose calls can be replayed, in the order of ``Function`` in ``source/tape.cpp``."""
logger = logging.getLogger(__name__)

Function = Callable[..., None]
CallObserver = Callable[[str, tuple[Any, ...]], None]


@dataclass(slots=True, kw_only=True)
class Library:
    """The compiled functions, which take addresses and numbers as declared in the sources."""

    pack_matrix: Function
    linear: Function
    pack_int8: Function
    linear_int8: Function
    pack_codes: Function
    linear_codes4: Function
    linear_codes8: Function
    pack_e4m3: Function
    linear_e4m3: Function
    rms_norm: Function
    silu_mul: Function
    rope: Function
    attend: Function
    causal_conv: Function
    recurrence: Function
    selective_scan: Function
    mask_logits: Function
    draw: Function
    replay: Function
    replay_tokens: Function
    _observers: dict[int, tuple[CallObserver, bool]] = field(init=False, default_factory=dict)
    _plain: dict[str, Function] = field(init=False, default_factory=dict)
    _changing: threading.Lock = field(init=False, default_factory=threading.Lock)

    @contextmanager
    def observe_calls(self, observe: CallObserver, *, compute: bool = True) -> Iterator[None]:
        """Pass the name and arguments of each library call of this thread to ``observe`` while the context is open.

        Callers must look up the function in the library for every call. Without ``compute``, the calls do nothing.
        """
        thread = threading.get_ident()
        with self._changing:
            if not self._observers:
                self._plain = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
                for name, function in self._plain.items():
                    setattr(self, name, partial(_call_and_observe, name, function, self._observers))
            self._observers[thread] = (observe, compute)
        try:
            yield
        finally:
            with self._changing:
                del self._observers[thread]
                if not self._observers:
                    for name, function in self._plain.items():
                        setattr(self, name, function)


def _call_and_observe(
    name: str, function: Function, observers: Mapping[int, tuple[CallObserver, bool]], *arguments: Any
) -> None:
    observe, compute = observers.get(threading.get_ident(), (None, True))
    if compute:
        function(*arguments)
    if observe is not None:
        observe(name, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The places on a machine that decide whether the kernels can be used, and from where they are loaded."""

    cpuinfo: Path = Path("/proc/cpuinfo")
    """File that lists the instructions of the CPU."""
    installed: Path = COMPILED
    """Folder of a library that is installed with the package."""
    cache: Path | None = None
    """Folder for caches; ``None``: the user's."""


THIS_MACHINE = Machine()


def why_not(machine: Machine = THIS_MACHINE) -> str:
    """Return the reason why the kernels cannot be used on a machine, or an empty string. Compiles them if needed."""
    return _why_not(machine)


@cache
def _why_not(machine: Machine) -> str:
    missing = _missing_instructions(machine.cpuinfo)
    if missing:
        return f"the CPU lacks {', '.join(missing)}"
    try:
        load(machine)
    except ConfigError as error:
        return str(error)
    return ""


def load(machine: Machine = THIS_MACHINE) -> Library:
    """Load the library. Raises ``ConfigError`` if it can be neither found nor compiled, or fails to load."""
    return _load(machine)


@cache
def _load(machine: Machine) -> Library:
    missing = _missing_instructions(machine.cpuinfo)
    if missing:
        raise ConfigError(f"the kernels avx512 need a CPU with {', '.join(missing)}")
    import torch  # noqa: F401  its OpenMP library must be loaded first

    path = library_path(machine)
    try:
        return _declare(ctypes.CDLL(str(path)))
    except OSError as error:
        raise ConfigError(
            f"the compiled kernels {path} do not load ({error}); remove the file to compile again"
        ) from None


def _declare(loaded: ctypes.CDLL) -> Library:
    pointer, number, long, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_float
    signatures: dict[str, Sequence[type]] = {
        "pack_matrix": (pointer, pointer, number, number),
        "linear": (pointer, pointer, pointer, pointer, number, number, number, number),
        "pack_int8": (pointer, pointer, pointer, number, number),
        "linear_int8": (pointer, pointer, pointer, pointer, pointer, pointer, number, number, number),
        "pack_codes": (pointer, pointer, number, number, number),
        "linear_codes4": (*[pointer] * 6, number, number, number, number),
        "linear_codes8": (*[pointer] * 6, number, number, number, number),
        "pack_e4m3": (pointer, pointer, number, number),
        "linear_e4m3": (*[pointer] * 5, number, number, number, number),
        "rms_norm": (pointer, pointer, pointer, pointer, number, number, number, real),
        "silu_mul": (pointer, pointer, number, number),
        "rope": (pointer, pointer, pointer, pointer, number, number, number, number, long, long),
        "attend": (pointer,),
        "causal_conv": (pointer,),
        "recurrence": (pointer,),
        "selective_scan": (pointer,),
        "mask_logits": (pointer, pointer, pointer, number, number, number),
        "draw": (*[pointer] * 6, number, number),
        "replay": (pointer, long),
        "replay_tokens": (pointer, long, long, pointer),
    }
    functions: dict[str, Function] = {}
    for name, arguments in signatures.items():
        functions[name] = function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    return Library(**functions)


def _missing_instructions(cpuinfo: Path) -> list[str]:
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return [f"a readable {cpuinfo}"]
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return [name for name in INSTRUCTIONS if name not in flags]


def compile_into(folder: Path) -> Path:
    """Compile the kernels and return the path of the library, which is new in ``folder``.

    Raises ``ConfigError`` if there is no compiler, or if it fails.
    """
    target = folder / _library_name()
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise ConfigError(f"no C++ compiler is installed ({', '.join(COMPILERS)})")
    logger.info("Compiling the CPU kernels with %s (once; kept as %s)", compiler, target)
    with scratch_folder(folder, "build-") as scratch:
        built = scratch / target.name
        objects = _compile_sources(compiler, scratch)
        _run([compiler, *FLAGS, *map(str, objects), "-o", str(built), *LIBRARIES])
        os.replace(built, target)
    return target


def _compile_sources(compiler: str, folder: Path) -> list[Path]:
    """Compile the sources, several at a time, and return the object files in ``folder``."""
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    commands = [
        [compiler, *FLAGS, "-c", str(source), "-o", str(built)] for source, built in zip(sources, objects, strict=True)
    ]
    label = "Compiling the CPU kernels"
    with ProgressLine(len(commands), logger) as progress, ThreadPoolExecutor(_compilers()) as pool:
        for done, _ in enumerate(pool.map(_run, commands), 1):
            progress.show(done, bar(label, done, len(commands)))
    return objects


def _compilers() -> int:
    """Return how many compilers run at a time."""
    return min(MAX_COMPILERS, len(os.sched_getaffinity(0)))


def library_path(machine: Machine = THIS_MACHINE) -> Path:
    """Return the library's path, compiling it if it is missing."""
    cache_folder = private_cache(machine.cache)
    for folder in (machine.installed, cache_folder):
        if (target := folder / _library_name()).exists():
            return target
    return compile_into(cache_folder)


def _library_name() -> str:
    """Return a file name that identifies the sources and flags."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in (*sorted(SOURCES.glob("*.cpp")), *sorted(SOURCES.glob("*.h"))):
        digest.update(path.read_bytes())
    return f"avx512-{digest.hexdigest()[:16]}.so"


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the C++ compiler did not run: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise ConfigError(f"{command[0]} could not compile the CPU kernels: {first}")


@cache
def private_cache(base: Path | None = None) -> Path:
    """Return a folder that only this user can write to, because code is loaded from it.

    It is in ``base``, by default the user's folder for caches, or else a temporary one.
    """
    base = base or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "sglang-plug" / f"kernels-{sys.platform}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
        if state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    temporary = private_folder("sglang-plug-kernels-")
    atexit.register(temporary.close)
    return temporary.path
