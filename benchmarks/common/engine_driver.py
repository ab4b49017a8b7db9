"""Manual driving of an engine: messages from a script, and timed decode steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sglang_plug import Request
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit, ToEngine


class ListInbox:
    """Inbox of messages that a script provides."""

    def __init__(self) -> None:
        self.messages: list[ToEngine] = []

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return all messages without waiting."""
        taken, self.messages = self.messages, []
        return taken


def nobody(message: FromEngine) -> None:
    """Discard outputs. Raises ``RuntimeError`` if a request fails."""
    for output in message.outputs if isinstance(message, StepOutputs) else ():
        if output.finish is not None and output.finish.reason == "error":
            raise RuntimeError(output.finish.message)


def decode_seconds(loop: EngineLoop, inbox: ListInbox, requests: Sequence[Request], count: int) -> list[float]:
    """Return the seconds of ``count`` decode steps of all ``requests``, whose outputs must be longer; then finish."""
    inbox.messages += [Submit(request) for request in requests]
    while len(loop.scheduler.running) < len(requests):
        loop.step()
    results = []
    for _ in range(count):
        started = time.perf_counter()
        loop.step()
        results.append(time.perf_counter() - started)
        assert len(loop.scheduler.running) == len(requests), "an output ended while it was measured"
    while loop.busy:
        loop.step()
    return results
