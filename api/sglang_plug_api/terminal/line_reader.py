"""Reading lines from a terminal, with history and completion, or from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HISTORY_LINES = 1000
CONTINUED = "\\"
"""At the end of a line: the message goes on in the next one."""


def history_file() -> Path:
    """Return the file of earlier messages, below ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return folder / "sglang-plug" / "chat_history"


class LineReader:
    """Yields the user's messages; a line that ends with a backslash goes on in the next.

    Args:
        words: what the Tab key completes.
        prompt: shown before each message on a terminal.
        history: the file of earlier messages, which only its owner may read.
    """

    def __init__(self, words: Sequence[str], prompt: str, history: Path) -> None:
        self._words, self._history = sorted(words), history
        self._interactive = sys.stdin.isatty()
        self._prompt = prompt if self._interactive else ""

    def messages(self) -> Iterator[str]:
        """Yield messages until the input ends; an interrupt discards the line that is being written."""
        with self._editing():
            lines: list[str] = []
            while True:
                try:
                    line = input("... " if lines and self._interactive else self._prompt)
                except EOFError:
                    break
                except KeyboardInterrupt:
                    if not self._interactive:
                        raise
                    lines = []
                    print("\n(Ctrl-D or /exit leaves)")
                    continue
                if line.endswith(CONTINUED):
                    lines.append(line.removesuffix(CONTINUED))
                    continue
                text, lines = "\n".join([*lines, line]).strip(), []
                if text:
                    yield text

    @contextlib.contextmanager
    def _editing(self) -> Iterator[None]:
        """Edit lines with readline inside the context, where there is a terminal and the library."""
        if not self._interactive:
            yield
            return
        try:
            import readline
        except ImportError:  # Python may be built without it
            yield
            return
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")
        readline.set_history_length(HISTORY_LINES)
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            readline.read_history_file(self._history)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                readline.write_history_file(self._history)

    def _complete(self, start: str, number: int) -> str | None:
        """Return the completion with this number, or ``None`` if there are fewer."""
        matching = [word for word in self._words if start and word.startswith(start)]
        return f"{matching[number]} " if number < len(matching) else None
