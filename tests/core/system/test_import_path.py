"""The working directory is not on the import path unless the user adds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import os, sys
from sglang_plug.system.import_path import leave_out_working_directory
leave_out_working_directory()
print(os.getcwd() in sys.path)
"""


@pytest.mark.parametrize(("python_path", "stays"), [("", False), (f"{os.pathsep}/nowhere", False), (".", True)])
def test_it_stays_only_where_the_path_names_it(python_path: str, stays: bool, tmp_path: Path) -> None:
    for path in (python_path, f"{python_path}{os.pathsep}/elsewhere" if python_path else python_path):
        done = subprocess.run(
            [sys.executable, "-c", SHOW],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.stdout == f"{stays}\n", done.stderr


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = (
        f"import os; os.rmdir({str(folder)!r}); {SHOW.replace('os.getcwd() in sys.path', chr(39) * 2 + ' in sys.path')}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.stdout == "False\n", done.stderr
