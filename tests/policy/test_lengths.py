"""Limits on the length of files, functions and lines, and on the number of modules in a folder."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

FILE_LINES, FUNCTION_LINES = 400, 60


def test_files_are_short(root: Path, sources: list[Any]) -> None:
    lengths = {source.path: len((root / source.path).read_text().splitlines()) for source in sources}
    read = {path: lines for path, lines in lengths.items() if path.parts[0] in ("core", "api")}
    assert {path: lines for path, lines in read.items() if lines > FILE_LINES} == {}
    assert len(read) > 20


def test_functions_are_short(sources: list[Any]) -> None:
    long = {
        f"{source.path}:{node.lineno} {node.name}": lines
        for source in sources
        if source.package in ("core", "api")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}
