"""The other door to the same command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sglang_plug import __main__ as command_line
from sglang_plug import launch_server


def test_launch_server_passes_everything_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(launch_server, "command_line", lambda argv: calls.append(argv) or 7)
    assert launch_server.main(["--port", "1"]) == 7
    monkeypatch.setattr(sys, "argv", ["launch_server", "--model-path", "m"])
    assert launch_server.main() == 7
    assert calls == [["serve", "--port", "1"], ["serve", "--model-path", "m"]]


def test_help_is_the_help_of_serve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert command_line.main(["serve", "--help"]) == 0
    expected = capsys.readouterr().out
    command = [sys.executable, "-m", "sglang_plug.launch_server", "--help"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == expected
