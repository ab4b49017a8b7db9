"""``python -m sglang_plug.launch_server ARGUMENTS`` is ``sglang-plug serve ARGUMENTS``."""

from __future__ import annotations

from sglang_plug.system.import_path import leave_out_working_directory

if __name__ == "__main__":
    leave_out_working_directory()  # before anything else is imported

import sys
from collections.abc import Sequence

from .__main__ import main as command_line
from .__main__ import program


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model and return the exit status."""
    return command_line(["serve", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    program(main)
