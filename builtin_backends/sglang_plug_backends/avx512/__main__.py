"""Compile the kernels into the package, for images and others who install it where nothing can be compiled later.

The processor of this machine need not have the instructions that the kernels use.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sglang_plug import ConfigError

from .library import COMPILED, compile_into


def main() -> int:
    """Compile, print the path of the library, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sglang_plug_backends.avx512", description=__doc__)
    parser.add_argument("--folder", type=Path, default=COMPILED, help="where to write it (default: the package)")
    folder: Path = parser.parse_args().folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        print(compile_into(folder))
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
