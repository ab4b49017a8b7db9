"""Ends the questions to grammars that the engine asks itself, and that are not answered.

A grammar that has answered quickly so far is asked without a thread that could be left behind. As long as it answers
this costs nothing: what is being asked, and since when, is read off the engine's stack once a step takes long.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from .grammars import PATIENCE, Asking, GrammarTimeout, asking


class GrammarGuard:
    """Raises ``GrammarTimeout`` into grammars that compute without end. To be made in the thread that it guards.

    That is the main thread, where signals are handled: between two instructions of Python, so a grammar that does not
    come back from a library's code is only named (``Asking``).

    Args:
        patience: seconds that one question may take.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience, self._thread = patience, threading.get_ident()
        signal.signal(signal.SIGUSR1, self._interrupt)

    def asking(self) -> Asking | None:
        """What the guarded thread asks a grammar, if it does."""
        return asking(sys._current_frames().get(self._thread))

    def look(self) -> None:
        """Interrupt what takes too long; to be called from another thread now and then."""
        found = self.asking()
        if found is not None and found.seconds > self._patience:
            signal.pthread_kill(self._thread, signal.SIGUSR1)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        found = asking(frame)
        if found is not None and found.seconds > self._patience:  # it may have answered in the meantime
            raise GrammarTimeout
