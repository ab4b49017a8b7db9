"""``sglang-plug check-sglang-program``: find the names of ``sglang`` that a program uses and that are not provided."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sglang_plug import ConfigError, Plugins

from .names import missing_names


class CheckProgram:
    """Reads Python files and prints the missing names; the status is 0 if there are none, else 1."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the options."""
        parser.add_argument("files", metavar="FILE", nargs="+", help="a Python file")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print ``FILE:LINE NAME`` for each missing name. Raises ``ConfigError`` for a file that cannot be read."""
        faults = [line for file in options.files for line in _faults(Path(file))]
        print("\n".join(faults) if faults else "every name of sglang is provided")
        return 1 if faults else 0


def _faults(file: Path) -> Sequence[str]:
    try:
        names = missing_names(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read as Python: {error}") from error
    return [f"{file}:{line} {name}" for line, name in names]


command = CheckProgram()
