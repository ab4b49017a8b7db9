"""``python -m sglang_plug.launch_server ARGUMENTS`` is ``sglang-plug serve ARGUMENTS``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .__main__ import main as command_line
from .leaving import leave


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model; the exit status."""
    return command_line(["serve", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    leave(main())
