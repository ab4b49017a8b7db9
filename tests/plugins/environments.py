"""Virtual environments with the distributions of plugins."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(*command: str | Path, **options: Any) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_environment(folder: Path, projects: Sequence[Path]) -> None:
    """Make an environment in which the packages of this one and the distributions of ``projects`` are installed."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = interpreter(folder)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(packages, "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    wheels = folder / "wheels"
    wheels.mkdir()
    run(python, Path(__file__).with_name("build_wheels.py"), wheels, *projects)
    wheel_files = sorted(wheels.glob("*.whl"))
    assert len(wheel_files) == len(projects), wheel_files
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", *wheel_files)


def interpreter(environment: Path) -> Path:
    """Return the Python of a virtual environment."""
    return environment / "bin" / "python"
