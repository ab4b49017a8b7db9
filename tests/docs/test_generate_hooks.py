from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_docstrings_say() -> None:
    done = subprocess.run([sys.executable, DOCS / "generate_hooks.py", "--check"], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
