"""The line that is overwritten, and silence where there is no terminal."""

from __future__ import annotations

import io
import sys

import pytest

from sglang_plug_backends.cuda_graphs.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("Capturing", 4) as progress:
        progress.show(0, "bs=128")
        progress.show(2, "bs=8")
        progress.show(4, "done")
    return stream.getvalue()


def test_a_terminal_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch)
    assert text.count("\n") == 1 and text.endswith("\n")
    first, second, third = text.strip("\r\n").split("\r")
    assert first == f"Capturing (bs=128):   0%|{' ' * 20}| 0/4"
    assert second.rstrip() == f"Capturing (bs=8):  50%|{'#' * 10}{' ' * 10}| 2/4"
    assert third.rstrip() == f"Capturing (done): 100%|{'#' * 20}| 4/4"
    assert len(second) >= len(first), "what was longer is overwritten"


def test_a_failure_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(RuntimeError), Progress("Capturing", 4) as progress:
        progress.show(1, "bs=8")
        raise RuntimeError("no")
    assert stream.getvalue().endswith("1/4\n")


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch) == ""
