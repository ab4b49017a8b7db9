"""Servers of a tree, started as users start them, with a clean environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READY, TIMEOUT = " at http://", 180.0
"""Text of the ready line, and the seconds that a server may take to write it."""
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Tree:
    """A checkout with its virtual environment, and a scratch folder."""

    root: Path
    scratch: Path

    @property
    def program(self) -> str:
        """Path of the installed command."""
        return str(self.root / ".venv" / "bin" / "sglang-plug")

    @property
    def python(self) -> str:
        """Path of the interpreter in whose environment the tree is installed."""
        return str(self.root / ".venv" / "bin" / "python")

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the server, of which only a few come from the caller."""
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "100", "TZ": "UTC"}
        state = {"XDG_STATE_HOME": str(self.scratch / "state"), "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", "")}
        return kept | fixed | {name: value for name, value in state.items() if value}

    def folder(self, name: str) -> Path:
        """Create a folder in the scratch folder, and return it."""
        path = self.scratch / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@contextlib.contextmanager
def serving(tree: Tree, name: str, *flags: str) -> Iterator[str]:
    """Yield the address of a server that ends with the block. Raises ``RuntimeError`` if the start fails."""
    folder = tree.folder(f"server-{name}")
    log = folder / "log.txt"
    command = [tree.program, "serve", "--port", "0", "--max-total-tokens", "8192", "--random-seed", "7", *flags]
    command += ["--file-storage-path", str(folder / "storage")]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=tree.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if READY in line), None)
        timer.cancel()
        if ready is None:
            raise RuntimeError(f"the server {name!r} did not start:\n{log.read_text(errors='replace')[-3000:]}")
        yield ready.split(" at ")[1].strip()
    finally:
        timer.cancel()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a server and all of its processes."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
