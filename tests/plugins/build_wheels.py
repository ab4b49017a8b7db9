"""Build a wheel of each project as an installer does, but for the isolation: ``build_wheels.py FOLDER PROJECT...``.

Each project is built in a process of its own, which has what builds need imported already.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def build(project: Path, folder: Path) -> None:
    """Build the wheel of a project into a folder with the backend that the project names."""
    os.chdir(project)
    system = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    sys.path[:0] = [str(project / path) for path in system.get("backend-path", ())]
    sys.argv[1:] = []
    importlib.import_module(system["build-backend"]).build_wheel(str(folder))


def main(folder: str, projects: Sequence[str]) -> int:
    """Build the wheels of all projects; return the status of the first one that fails."""
    importlib.import_module("setuptools.build_meta")
    for project in projects:
        child = os.fork()
        if not child:
            build(Path(project), Path(folder))
            sys.stdout.flush()
            os._exit(0)
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            print(f"the build of {project} ended with {status}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
