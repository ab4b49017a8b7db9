"""A guard around observers, so that their errors do not affect requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_plug import Observer, RequestEvent, StepStats
from sglang_plug.system.library_panics import is_error

logger = logging.getLogger(__name__)


class GuardedObserver(Observer):
    """Passes every call to ``observer`` and catches its errors; the first one of each method is logged."""

    def __init__(self, name: str, observer: Observer) -> None:
        self.name, self.observer = name, observer
        self._reported = set[str]()

    def on_request(self, event: RequestEvent) -> None:
        """Pass the call on, see ``Observer.on_request``."""
        self._call(self.observer.on_request, event)

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        """Pass the call on, see ``Observer.on_tokens``."""
        self._call(self.observer.on_tokens, request, tokens, time)

    def on_step(self, stats: StepStats) -> None:
        """Pass the call on, see ``Observer.on_step``."""
        self._call(self.observer.on_step, stats)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except BaseException as error:
            if not is_error(error):
                raise
            name = method.__name__
            if name not in self._reported:
                self._reported.add(name)
                kind = type(self.observer)
                logger.error(
                    "observer %r (%s.%s) failed in %s; it is still called, but further errors there are not logged: "
                    "%s: %s",
                    self.name,
                    kind.__module__,
                    kind.__qualname__,
                    name,
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
