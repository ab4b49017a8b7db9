"""Files and batches in OpenAI's API: ids, requests and objects."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sglang_plug import BatchRecord, FileRecord, Page, TokenCounts
from sglang_plug_api.protocol.base import Name, RequestBody
from sglang_plug_api.protocol.misplaced import Remedies

Record = TypeVar("Record")
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]

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


def file_object(file: FileRecord) -> dict[str, Any]:
    """Return OpenAI's file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    """Return OpenAI's batch object."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "in_progress_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "finalizing_at": batch.finalizing_at,
        "completed_at": batch.completed_at,
        "failed_at": batch.failed_at,
        "expired_at": batch.expired_at,
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": batch.cancelled_at,
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": _usage(batch.usage),
        "metadata": None if batch.metadata is None else dict(batch.metadata),
    }


def list_object(page: Page[Record], as_object: Callable[[Record], dict[str, Any]]) -> dict[str, Any]:
    """Return OpenAI's list object; ``as_object`` returns that of an item."""
    data = [as_object(item) for item in page.items]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": page.has_more,
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
