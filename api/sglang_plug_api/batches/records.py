"""Records of files and batches as they are stored, and their form in OpenAI's API."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sglang_plug_api.protocol.base import Name, RequestBody
from sglang_plug_api.protocol.misplaced import Remedies

Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "validating": frozenset({"in_progress", "failed", "expired", "cancelling"}),
    "in_progress": frozenset({"finalizing", "failed", "expired", "cancelling"}),
    "finalizing": frozenset({"completed", "failed", "cancelling"}),
    "cancelling": frozenset({"cancelled", "failed"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
"""Allowed changes of a batch's status."""
OPEN_STATUSES = frozenset(status for status, following in TRANSITIONS.items() if following)
"""Statuses of batches that have not ended."""

DAY = 24 * 3600
COMPLETION_WINDOWS: Mapping[str, int] = {"24h": DAY}
"""Maps a completion window to its seconds."""

INPUT_PURPOSE = "batch"
IMAGE_PURPOSES = ("vision", "user_data")
"""Purposes of files that ``/v1/responses`` accepts as images."""
OUTPUT_PURPOSE = "batch_output"
INPUT_PREFIX = "backend_input_file-"
RESULT_PREFIX = "backend_result_file-"
ERROR_PREFIX = "backend_error_file-"
BATCH_PREFIX = "batch_"
LINE_PREFIX = "batch_req_"

MAX_METADATA = 16
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


def new_record_id(prefix: str) -> str:
    """Return an id with 122 random bits."""
    return f"{prefix}{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A stored file. ``filename`` is the client's name for it: text, never a path."""

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    owner: str = ""
    """Id of the API key that created it, see ``callers``; empty: created without a key, or by an earlier version."""

    def as_dict(self) -> dict[str, Any]:
        """Return OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


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
    status: Status = "validating"
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
    """Id of the API key that created it, see ``callers``; empty: created without a key, or by an earlier version."""

    def as_dict(self) -> dict[str, Any]:
        """Return OpenAI's batch object."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": self.finalizing_at,
            "completed_at": self.completed_at,
            "failed_at": self.failed_at,
            "expired_at": self.expired_at,
            "cancelling_at": self.cancelling_at,
            "cancelled_at": self.cancelled_at,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": _usage(self.usage),
            "metadata": None if self.metadata is None else dict(self.metadata),
        }


def _usage(counts: TokenCounts) -> dict[str, Any]:
    """Return OpenAI's ``usage`` of a batch."""
    return {
        "input_tokens": counts.input_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens},
        "output_tokens": counts.output_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """The result of one line."""

    line: int
    succeeded: bool
    payload: bytes
    """The line of the result or error file, without its newline."""
    usage: TokenCounts = TokenCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a list, and whether more entries follow."""

    items: tuple[Any, ...] = field(default=())
    has_more: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return OpenAI's list object."""
        data = [item.as_dict() for item in self.items]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": self.has_more,
        }


class BatchBody(RequestBody):
    """``POST /v1/batches``."""

    misplaced: ClassVar[Remedies] = {"output_expires_after": "outputs are kept until they are deleted"}

    input_file_id: Name
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA)] | None = None


class Query(BaseModel):
    """Query parameters of a list."""

    model_config = ConfigDict(extra="ignore")

    after: Name | None = None
    order: Literal["asc", "desc"] = "desc"


class BatchQuery(Query):
    """``GET /v1/batches``."""

    limit: int = Field(20, ge=1, le=100)


class FileQuery(Query):
    """``GET /v1/files``."""

    limit: int = Field(10_000, ge=1, le=10_000)
    purpose: Name | None = None
