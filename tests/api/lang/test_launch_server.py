"""Tests of starting the server under the name of the package."""

from __future__ import annotations

import subprocess
import sys


def test_it_is_the_server_by_another_name() -> None:
    command = [sys.executable, "-m", "sglang_plug_lang.launch_server", "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert "unknown option '--no-such-option'" in done.stderr
