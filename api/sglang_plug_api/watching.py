"""Observers that cannot hurt what they watch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_plug import Observer, RequestEvent, StepStats

logger = logging.getLogger(__name__)


class ShieldedObserver(Observer):
    """Tells ``observer`` everything; what it raises is logged, the first time for each method, and goes no further."""

    def __init__(self, name: str, observer: Observer) -> None:
        self.name, self.observer = name, observer
        self._reported = set[str]()

    def on_request(self, event: RequestEvent) -> None:
        """As ``Observer.on_request``."""
        self._tell(self.observer.on_request, event)

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        """As ``Observer.on_tokens``."""
        self._tell(self.observer.on_tokens, request, tokens, time)

    def on_step(self, stats: StepStats) -> None:
        """As ``Observer.on_step``."""
        self._tell(self.observer.on_step, stats)

    def on_stop(self) -> None:
        """As ``Observer.on_stop``."""
        self._tell(self.observer.on_stop)

    def _tell(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:
            name = method.__name__
            if name not in self._reported:
                self._reported.add(name)
                kind = type(self.observer)
                logger.error(
                    "observer %r (%s.%s) failed in %s; it is told of more, but further errors there are not logged: "
                    "%s: %s",
                    self.name,
                    kind.__module__,
                    kind.__qualname__,
                    name,
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
