"""Driving an engine by hand: messages that a script hands over, and decode steps with a clock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sglang_plug import Request
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages import FromEngine, News, Submit, ToEngine


class ListInbox:
    """Messages that a script hands over."""

    def __init__(self) -> None:
        self.messages: list[ToEngine] = []

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Everything there is; never waits."""
        taken, self.messages = self.messages, []
        return taken


def nobody(message: FromEngine) -> None:
    """Where a client would be. Raises ``RuntimeError`` if a request fails, which nothing here expects."""
    for output in message.outputs if isinstance(message, News) else ():
        if output.finish is not None and output.finish.reason == "error":
            raise RuntimeError(output.finish.message)


def decode_seconds(loop: EngineLoop, inbox: ListInbox, requests: Sequence[Request], count: int) -> list[float]:
    """Seconds of ``count`` decode steps of all ``requests``, whose outputs must be longer; then they are finished."""
    inbox.messages += [Submit(request) for request in requests]
    while len(loop.scheduler.running) < len(requests):
        loop.step()
    found = []
    for _ in range(count):
        started = time.perf_counter()
        loop.step()
        found.append(time.perf_counter() - started)
        assert len(loop.scheduler.running) == len(requests), "an output ended while it was measured"
    while loop.busy:
        loop.step()
    return found
