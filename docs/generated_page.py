"""Functions that all programs which write pages of the documentation share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parent


BLOCK = re.compile(r"(<!-- begin ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def write_or_check(
    path: Path, page: Callable[[], str], about: str | None, arguments: Sequence[str] | None = None
) -> int:
    """Write ``page()`` to ``path``; with ``--check``, which fails if that would change it, write nothing.

    Returns the exit status of the program, whose ``--help`` shows ``about``. Its ``arguments`` are those of the command
    line by default.
    """
    return write_or_check_pages({path: page}, about, f"generate_{path.stem.replace('-', '_')}.py", arguments)


def write_or_check_pages(
    pages: Mapping[Path, Callable[[], str]],
    about: str | None,
    program: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Write or check several pages of one program, like ``write_or_check``."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    check = parser.parse_args(arguments).check
    status = 0
    for path, page in pages.items():
        text = page()
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            name = path.relative_to(DOCS) if path.is_relative_to(DOCS) else path.name
            print(f"docs/{name} is out of date; run: python docs/{program}", file=sys.stderr)
            status = 1
    return status


def with_blocks(page: Path, blocks: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """Return the text of a page with each generated part, ``<!-- begin NAME -->`` to ``<!-- end NAME -->``, renewed.

    ``blocks`` maps names to functions that return lines.
    """
    text = page.read_text(encoding="utf-8")
    return BLOCK.sub(lambda match: match[1] + "\n".join(blocks[match[2]]()) + "\n" + match[3], text)


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(escape, cells)) + " |"


def escape(text: str) -> str:
    """``text`` within a table."""
    return text.replace("|", "\\|")
