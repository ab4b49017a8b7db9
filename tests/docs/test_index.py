"""The program on the first page of the documentation works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "index.md"


def test_the_engine_without_a_server() -> None:
    program = re.search(r"## Without a server\n\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    done = subprocess.run([sys.executable, "-c", program[1]], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    capital, *story = done.stdout.splitlines()
    assert "Paris" in capital and len(story) > 1 and story[-1].startswith(story[0])
