"""Interrupts direct calls of grammars that do not return.

A grammar that has been quick so far is called without a thread that could be abandoned. The guard costs nothing while
calls return: the current call, and its start, are read from the engine's stack once a step takes long.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from .batch_grammars import TIMEOUT_SECONDS, GrammarCall, GrammarTimeout, current_grammar_call


class GrammarGuard:
    """Raises ``GrammarTimeout`` into grammars that compute without end. Must be made in the thread that it guards.

    That is the main thread, where signals are handled, between two Python instructions. So a grammar that does not
    return from a library's code is only named (``GrammarCall``).

    Args:
        timeout: seconds that one call may take.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout, self._thread = timeout, threading.get_ident()
        signal.signal(signal.SIGUSR1, self._interrupt)

    def current_call(self) -> GrammarCall | None:
        """Return the grammar call of the guarded thread, if it is in one."""
        return current_grammar_call(sys._current_frames().get(self._thread))

    def check(self) -> None:
        """Interrupt a call that takes too long; must be called from another thread at intervals."""
        call = self.current_call()
        if call is not None and call.seconds > self._timeout:
            signal.pthread_kill(self._thread, signal.SIGUSR1)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        call = current_grammar_call(frame)
        if call is not None and call.seconds > self._timeout:  # the call may have returned in the meantime
            raise GrammarTimeout
