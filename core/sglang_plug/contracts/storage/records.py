"""Records of files and batches, as stores keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Record = TypeVar("Record")

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
BATCH_TRANSITIONS: Mapping[BatchStatus, frozenset[BatchStatus]] = {
    "validating": frozenset({"in_progress", "failed", "expired", "cancelling"}),
    "in_progress": frozenset({"finalizing", "failed", "expired", "cancelling"}),
    "finalizing": frozenset({"completed", "failed", "cancelling"}),
    "cancelling": frozenset({"cancelled", "failed"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
"""Status -> the statuses that may follow it."""
OPEN_BATCH_STATUSES = frozenset(status for status, following in BATCH_TRANSITIONS.items() if following)
"""Statuses of batches that have not ended."""
WHOLE_BATCH = 0
"""Number of the line that stands for all of a batch in ``Store.claim``; the lines of a file are numbered from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A stored file. ``filename`` is the client's name for it: text, never a path."""

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    """Seconds since the epoch."""
    owner: str = ""
    """Id of the API key that created it; empty: created without a key, or by an earlier version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Token counts of responses: prompt tokens, those of them from the cache, output tokens and reasoning tokens."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A stored batch; times are whole seconds since the epoch."""

    id: str
    model: str
    """The model that it was created for; no other model may run it."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: BatchStatus = "validating"
    metadata: Mapping[str, str] | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: TokenCounts = TokenCounts()
    """Token counts of all results."""
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    owner: str = ""
    """Id of the API key that created it; empty: created without a key, or by an earlier version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """The result of one line of a batch."""

    line: int
    succeeded: bool
    payload: bytes
    """The line of the result or error file, without its newline."""
    usage: TokenCounts = TokenCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Record]):
    """A page of a list, and whether more entries follow."""

    items: tuple[Record, ...] = ()
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRecord:
    """A stored response of ``/v1/responses``; everything in it is JSON."""

    id: str
    answer: Mapping[str, Any]
    """The response object, as clients get it."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The conversation including the output, without instructions."""
    items: tuple[Mapping[str, Any], ...] = ()
    """Input items of the request itself."""
    owner: str = ""
    """Id of the API key of its request."""
    streams: bool = False
    """True if its events are stored, too."""
    running: bool = False
    """True while a server generates it."""
