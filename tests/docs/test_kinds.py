"""Tests that each kind of components has a page whose generated parts are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_plug.testing.installed.checks import CHECKS

DOCS = Path(__file__).parents[2] / "docs"
PARTS = ("Shapes and units", "Lifecycle", "Performance", "Example", "Test it")


def test_the_pages_are_what_would_be_written() -> None:
    command = [sys.executable, str(DOCS / "generate_kinds.py"), "--check"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_kind_has_a_page() -> None:
    assert sorted(page.stem for page in (DOCS / "kinds").glob("*.md")) == sorted(CHECKS)


@pytest.mark.parametrize("kind", CHECKS)
def test_a_page_has_all_parts(kind: str) -> None:
    page = (DOCS / "kinds" / f"{kind}.md").read_text(encoding="utf-8")
    assert [part for part in PARTS if f"\n## {part}\n" not in page] == []
    assert len(re.findall(r'^```python title="', page, re.MULTILINE)) >= 3
    for name in CHECKS[kind]:
        assert f"**`{name}(" in page
