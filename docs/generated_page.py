"""What the programs that write a page of the documentation have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(path: Path, page: Callable[[], str], about: str | None) -> int:
    """Write ``page()`` to ``path``; with ``--check``, which fails if that would change it, write nothing.

    Returns the exit status of the program, whose ``--help`` shows ``about``.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    check = parser.parse_args().check
    text = page()
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    program = f"generate_{path.stem.replace('-', '_')}.py"
    print(f"docs/{path.name} is out of date; run: python docs/{program}", file=sys.stderr)
    return 1


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(escape, cells)) + " |"


def escape(text: str) -> str:
    """``text`` within a table."""
    return text.replace("|", "\\|")
