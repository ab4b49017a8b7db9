"""``python -m sglang_plug.launch_server``, another entry point of the same command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sglang_plug import __main__ as command_line
from sglang_plug import launch_server


def test_launch_server_passes_everything_to_serve(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--prot", "1", "--model-path", "m"]
    assert command_line.main(["serve", *wrong]) == 2
    expected = capsys.readouterr().err
    assert "unknown option '--prot'" in expected
    assert launch_server.main(wrong) == 2
    assert capsys.readouterr().err == expected
    command = [sys.executable, "-m", "sglang_plug.launch_server", *wrong]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, expected)


def test_help_is_the_help_of_serve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert command_line.main(["serve", "--help"]) == 0
    expected = capsys.readouterr().out
    command = [sys.executable, "-m", "sglang_plug.launch_server", "--help"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == expected
