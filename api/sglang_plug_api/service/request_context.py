"""The context of a request: the caller that it counts for, and its deadline.

Like the caller of ``service.callers``, it is in a context variable, so that routes of plugins have it without passing
it on. ``http.request_body`` sets it from the body and the headers of the request.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from pydantic import BaseModel

from sglang_plug import RequestError
from sglang_plug.contracts.serving.observer import DeadlineOutcome

from .preparation import Preparation

DEADLINE_STATUS = 504
"""Status of the refusal of a request that would miss its deadline."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The caller that a request counts for, and its deadline."""

    caller: str | None = None
    """Id that the engine knows the caller by; ``None``: the owner id of the API key."""
    deadline_ms: int | None = None
    """Milliseconds from the arrival in which the output should be complete; ``None``: whenever it is."""
    is_batch_line: bool = False
    """True if the request is a line of a batch."""
    preparation: Preparation | None = field(default=None, compare=False)
    """The time before the jobs of the request begin; ``None`` if no route serves it."""
    received: float = field(default_factory=time.time, compare=False)
    """``time.time()`` when the body of the request was read, before anything was done for it."""

    @property
    def deadline(self) -> float | None:
        """The time by which the output should be complete, as ``time.time`` returns it."""
        return None if self.deadline_ms is None else self.received + self.deadline_ms / 1000

    def check_deadline(self) -> None:
        """Raise ``RequestError`` with status 504 if the deadline has passed."""
        if self.deadline is not None and self.deadline <= time.time():
            raise RequestError(
                "The deadline of the request cannot be met: it passed before the prompt was tokenized.", DEADLINE_STATUS
            )


DEFAULT = RequestContext()
_current: ContextVar[RequestContext] = ContextVar("request_context", default=DEFAULT)


def current_request_context() -> RequestContext:
    """Return the context of the request that is being served."""
    return _current.get()


def set_request_context(context: RequestContext) -> None:
    """Serve the rest of this request in ``context``."""
    _current.set(context)


def deadline_of(body: BaseModel) -> int | None:
    """Return the deadline that a body sets, in milliseconds."""
    value = getattr(body, "deadline_ms", None) if "deadline_ms" in type(body).model_fields else None
    return value if isinstance(value, int) else None


def deadline_outcome(deadline: float | None, finished: float, reason: str, refused: int) -> DeadlineOutcome:
    """Return what became of a deadline. A client that left before it neither met nor missed it.

    Args:
        deadline: ``None`` if there is none.
        finished: when the request ended.
        reason: why the output ended; empty if it did not.
        refused: the status that the request was refused with, or 0.
    """
    if deadline is None:
        return ""
    if refused == DEADLINE_STATUS:
        return "refused"
    if finished > deadline or refused:
        return "missed"
    return "met" if reason in ("stop", "length") else ""
