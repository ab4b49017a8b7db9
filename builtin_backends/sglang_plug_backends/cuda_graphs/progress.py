"""A progress line on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

WIDTH = 20
GIB = 1 << 30
"""Bytes of a GB in the log."""


class Progress:
    """A line on stderr that is overwritten with each step and ends with the block; silent if there is no terminal.

    Args:
        label: name of the work.
        total: number of its steps.
    """

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.active = sys.stderr.isatty()
        self._length = 0

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, detail: str) -> None:
        """Show that ``done`` steps are done; ``detail`` describes the last one."""
        if not self.active:
            return
        bar = ("#" * (WIDTH * done // self.total)).ljust(WIDTH)
        line = f"{self.label} ({detail}): {100 * done // self.total:3d}%|{bar}| {done}/{self.total}"
        sys.stderr.write(f"\r{line.ljust(self._length)}")
        sys.stderr.flush()
        self._length = len(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active and self._length:
            sys.stderr.write("\n")
            sys.stderr.flush()
