"""The reading list of the README counts its files and lines correctly."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERS = {"five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
TOLERANCE = 0.1
"""Relative difference that "about" allows."""


def test_the_reading_list_counts_files_and_lines() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Read the code\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    assert section is not None
    stated = re.search(r"(\w+) files, about ([\d,]+) lines", section[1])
    assert stated is not None
    files = re.findall(r"^\d+\. \[`([\w/.]+)`\]\(([\w/.]+)\)", section[1], re.MULTILINE)
    assert all(name == link for name, link in files)
    lines = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name, _ in files)
    assert NUMBERS[stated[1].lower()] == len(files)
    claimed = int(stated[2].replace(",", ""))
    assert abs(claimed - lines) <= TOLERANCE * lines, f"the reading list has {lines} lines, the README says {claimed}"
