"""Largest numbers of sequences of one request: with more it is refused, since it could not be served at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLimits:
    """The largest numbers of sequences of one request, which arrive in the queue of the engine together."""

    per_request: int
    """``--max-sequences-per-request``."""
    open: int | None
    """The sequences of one replica that run or wait; ``None``: unknown."""
    waiting_per_caller: int | None
    """The sequences of one caller that wait for one replica; ``None``: no limit of its own."""
    replicas: int
    """The number of replicas at the start."""

    @classmethod
    def of(cls, config: ServerConfig, info: Mapping[str, Any]) -> SequenceLimits:
        """Return the limits of a server; ``info`` is the description of its replicas together."""
        schedule, running = config.engine.schedule, info.get("max_running_requests")
        replicas = len(info.get("replica_states", ())) or 1
        return cls(
            per_request=config.max_sequences_per_request,
            open=None if running is None else running // replicas + schedule.max_queued_requests,
            waiting_per_caller=schedule.max_queued_per_caller,
            replicas=replicas,
        )

    def check(self, total: int, replicas: int) -> None:
        """Raise ``ApiError`` if a request with ``total`` sequences is too large."""
        if total > self.per_request:
            raise _too_many(total, f"the maximum is {self.per_request}", "n")
        self.check_queue(total, replicas, "n")

    def check_queue(self, total: int, replicas: int, param: str) -> None:
        """Raise ``ApiError`` if the queue would refuse ``total`` sequences even if it was empty.

        ``replicas`` is the present number of replicas, and ``param`` the field that has too many.
        """
        replicas = max(replicas, self.replicas)
        if self.open is not None and total > self.open * replicas:
            limit = self.open * replicas
            raise _too_many(total, f"at most {limit} run and wait together (--max-queued-requests)", param)
        if self.waiting_per_caller is not None and total > self.waiting_per_caller * replicas:
            limit = self.waiting_per_caller * replicas
            raise _too_many(total, f"a caller may have {limit} waiting (--max-queued-per-caller)", param)


def _too_many(total: int, reason: str, param: str) -> ApiError:
    return ApiError(f"the request has {total} sequences (prompts times n); {reason}", param=param)
