"""The repository speaks of the software only: no ticket numbers, no paths of somebody's machine, no mirrors."""

from __future__ import annotations

import re
from pathlib import Path

FOLDERS = "core builtin_models builtin_backends api plugins tests docs benchmarks examples".split()
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ".jinja", ""}
FORBIDDEN = re.compile(
    r"/work/|/root/|/home/\w|helper agent|language model (wrote|generated) this"
    r"|(?<![\w&/#])#\d+\b|\b(issue|ticket|pull request)s? #?\d+"
    r"|\b(pypi|npmjs)\.org\b|pythonhosted",
    re.IGNORECASE,
)


def test_no_word_that_does_not_belong(root: Path) -> None:
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    files += [path for path in root.iterdir() if path.is_file() and path.name != ".git"]  # a file in a worktree
    matches = [
        f"{path.relative_to(root)}:{number}: {line.strip()[:80]}"
        for path in files
        if path.suffix in SUFFIXES and path != Path(__file__) and "__pycache__" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert matches == []
