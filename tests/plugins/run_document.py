"""Run the code cells of a document in one namespace: ``python run_document.py CELLS.json``.

Servers that the cells leave behind are ended. The documents' pauses of several seconds are shortened: they are made for
larger models. The output's last line is the number of cells that ran.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sglang.utils import terminate_process

LONGEST_PAUSE = 0.2
"""Maximum seconds that a cell may sleep."""


def run(cells: list[tuple[str, str]]) -> None:
    """Run cells, each a name and a text; an error ends the run."""
    names: dict[str, Any] = {"__name__": "notebook"}
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, LONGEST_PAUSE))
    try:
        for name, text in cells:
            print(f"--- {name}", flush=True)
            exec(compile(text, name, "exec"), names)
    finally:
        for value in names.values():
            if isinstance(value, subprocess.Popen):
                terminate_process(value)


if __name__ == "__main__":
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    run(document)
    print(len(document))
