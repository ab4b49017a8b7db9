"""Progress of a long piece of work: one line that is overwritten on a terminal, a few lines of the log elsewhere."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Self

WIDTH = 20
MAX_LINES = 10
"""Maximum number of lines of the log for one piece of work."""


class ProgressLine:
    """Shows how many steps are done. Used in ``with``, which ends the line.

    Args:
        total: number of steps.
        logger: logger of the lines where there is no terminal.
    """

    def __init__(self, total: int, logger: logging.Logger) -> None:
        self.total, self._logger = total, logger
        self._on_terminal = sys.stderr.isatty()
        self._length = self._logged = 0

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, text: str) -> None:
        """Show ``text``, which says that ``done`` steps are done; the log gets one text for each tenth of the steps."""
        if self._on_terminal:
            sys.stderr.write(f"\r{text.ljust(self._length)}")
            sys.stderr.flush()
            self._length = len(text)
        elif done and (part := done * MAX_LINES // self.total) > self._logged:
            self._logged = part
            self._logger.info("%s", text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._length:
            sys.stderr.write("\n")
            sys.stderr.flush()


def bar(label: str, done: int, total: int) -> str:
    """Return the text of a bar: its label, the share in percent, the bar, and both numbers."""
    filled = ("#" * (WIDTH * done // total)).ljust(WIDTH)
    return f"{label}: {100 * done // total:3d}%|{filled}| {done}/{total}"
