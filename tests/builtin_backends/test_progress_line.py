"""A progress line, which is overwritten on a terminal and logged a few times elsewhere."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr

import pytest

from sglang_plug_backends.progress_line import ProgressLine, bar

LOGGER = logging.getLogger("sglang_plug.progress")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line(caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    with redirect_stderr(terminal), caplog.at_level(logging.INFO), ProgressLine(2, LOGGER) as progress:
        progress.show(1, "a long text: 1")
        progress.show(2, "short: 2")
    assert terminal.getvalue() == "\ra long text: 1\rshort: 2      \n"
    assert caplog.messages == []


def test_without_a_terminal_the_log_has_a_few_lines(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for total in (3, 200):
            with ProgressLine(total, LOGGER) as progress:
                for done in range(total + 1):
                    progress.show(done, f"{done} of {total}")
    assert caplog.messages == ["1 of 3", "2 of 3", "3 of 3", *(f"{20 * part} of 200" for part in range(1, 11))]
    assert capsys.readouterr().err == ""


def test_nothing_was_shown() -> None:
    with redirect_stderr(Terminal()) as terminal, ProgressLine(2, LOGGER):
        pass
    assert terminal.getvalue() == ""


def test_the_bar_says_how_far_it_is() -> None:
    assert bar("Work", 1, 4) == "Work:  25%|#####               | 1/4"
    assert bar("Work", 4, 4) == "Work: 100%|####################| 4/4"
