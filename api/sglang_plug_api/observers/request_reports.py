"""Reports of requests to the observers: their tokens as they arrive, and their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from sglang_plug import Observer, RequestEvent
from sglang_plug_api.service.request_context import RequestContext, deadline_outcome

from .observer_guard import GuardedObserver

logger = logging.getLogger(__name__)


class RequestReports:
    """Reports the requests of a server to its observers.

    Args:
        observers: maps names to loaded observers.
        log: write the end of each request to the log as well.
    """

    def __init__(self, observers: Mapping[str, Observer], *, log: bool) -> None:
        self.observers = tuple(GuardedObserver(name, observer) for name, observer in observers.items())
        self._log = log

    def late(self, context: RequestContext) -> None:
        """Report a request whose deadline passed before it was tokenized."""
        self._send(
            RequestEvent(
                id="",
                reason="abort",
                prompt_tokens=0,
                cached_tokens=0,
                output_tokens=0,
                arrived=context.received,
                first_token=None,
                finished=time.time(),
                deadline="refused",
            )
        )

    def ended(self, event: RequestEvent) -> None:
        """Report the end of a request."""
        self._send(event)
        if self._log:
            logger.info("Request %s", event)

    def _send(self, event: RequestEvent) -> None:
        for observer in self.observers:
            observer.on_request(event)


class JobReport:
    """The report of one job. Tokens that are computed once more, because a replica failed, are reported once.

    Args:
        reports: those of the server.
        id: id of the job.
        request: the client's id of the request that the job belongs to; empty: ``id``.
        prompt_tokens: length of its prompt.
        arrived: ``time.time()`` at its arrival.
        deadline: the time by which it should be complete, if there is one.
    """

    def __init__(
        self,
        reports: RequestReports,
        *,
        id: str,
        request: str,
        prompt_tokens: int,
        arrived: float,
        deadline: float | None,
    ) -> None:
        self._reports = reports
        self._id = id
        self._request = request
        self._prompt_tokens = prompt_tokens
        self._arrived = arrived
        self._deadline = deadline
        self._first_token: float | None = None
        self._reported = 0

    def progress(self, tokens: int) -> None:
        """Report that the output has ``tokens`` tokens so far."""
        now = time.time()
        if tokens and self._first_token is None:
            self._first_token = now
        new = max(0, tokens - self._reported)
        self._reported += new
        for observer in self._reports.observers:
            observer.on_tokens(self._id, new, now)

    def restart(self) -> None:
        """Begin anew: the output is computed once more."""
        self._first_token = None

    def end(self, reason: str, output_tokens: int, cached_tokens: int, refused: int) -> None:
        """Report the end of the job.

        Args:
            reason: why its output ended; empty: it did not.
            output_tokens: length of the output.
            cached_tokens: the prompt tokens that came from the prefix cache.
            refused: the status of its refusal, or 0.
        """
        finished = time.time()
        self._reports.ended(
            RequestEvent(
                id=self._id,
                reason=reason or "abort",
                prompt_tokens=self._prompt_tokens,
                cached_tokens=cached_tokens,
                output_tokens=output_tokens,
                arrived=self._arrived,
                first_token=self._first_token,
                finished=finished,
                request=self._request,
                deadline=deadline_outcome(self._deadline, finished, reason, refused),
            )
        )
