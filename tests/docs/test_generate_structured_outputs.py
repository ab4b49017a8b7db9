from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_are_what_is_enforced() -> None:
    command = [sys.executable, DOCS / "generate_structured_outputs.py", "--check"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
