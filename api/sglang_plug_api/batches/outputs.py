"""Lines of the result files, and the writing of these files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from sglang_plug_api.http.errors import json_bytes

from .lines import Line, read_lines
from .records import (
    ERROR_PREFIX,
    LINE_PREFIX,
    OUTPUT_PURPOSE,
    RESULT_PREFIX,
    BatchRecord,
    FileRecord,
    LineResult,
    TokenCounts,
    new_record_id,
)
from .route_call import RouteAnswer
from .storage import DurableFile, Storage
from .store import Store

CHUNK = 64
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}


def line_result(line: Line, answer: RouteAnswer) -> LineResult:
    """Return the result to store for an answered line."""
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body}
    return LineResult(
        line=line.number,
        succeeded=answer.status < 400,
        payload=_payload(line, response, None),
        usage=_token_counts(answer.body),
    )


async def write_results(
    storage: Storage, batch: BatchRecord, succeeded: bool, now: int, extra_lines: Iterator[bytes]
) -> FileRecord | None:
    """Write a file with a batch's results of one kind, then ``extra_lines``; return ``None`` if there are none.

    The file is on disk but not in the table yet.
    """
    kind, prefix = ("output", RESULT_PREFIX) if succeeded else ("error", ERROR_PREFIX)
    id = new_record_id(prefix)
    file = await asyncio.to_thread(DurableFile, storage.path(id))
    try:
        after = 0
        while rows := await storage.call(partial(_results, batch.id, succeeded, after)):
            await asyncio.to_thread(file.write, _joined([payload for _, payload in rows]))
            after = rows[-1][0]
        while more := await asyncio.to_thread(lambda: list(islice(extra_lines, CHUNK))):
            await asyncio.to_thread(file.write, _joined(more))
        if not file.size:
            file.discard()
            return None
        await asyncio.to_thread(file.close)
    except BaseException:
        with contextlib.suppress(OSError):
            file.discard()
        raise
    return FileRecord(
        id=id,
        purpose=OUTPUT_PURPOSE,
        filename=f"{batch.id}_{kind}.jsonl",
        bytes=file.size,
        created_at=now,
        owner=batch.owner,
    )


def expired_lines(path: Path, endpoint: str, max_bytes: int, done: set[int]) -> Iterator[bytes]:
    """Yield an entry of the error file for each line that did not run in time."""
    for line in read_lines(path, endpoint, max_bytes):
        if line.number not in done:
            yield _payload(line, None, EXPIRED)


def _token_counts(body: Any) -> TokenCounts:
    """Return the counts in a response's ``usage``; missing ones count as zero."""
    return TokenCounts(
        input_tokens=_number(body, "usage", "prompt_tokens"),
        cached_tokens=_number(body, "usage", "prompt_tokens_details", "cached_tokens"),
        output_tokens=_number(body, "usage", "completion_tokens"),
        reasoning_tokens=_number(body, "usage", "completion_tokens_details", "reasoning_tokens"),
    )


def _number(value: Any, *path: str) -> int:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else 0


def _payload(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    entry = {"id": new_record_id(LINE_PREFIX), "custom_id": line.custom_id, "response": response, "error": error}
    return json_bytes(entry)


def _results(batch: str, succeeded: bool, after: int, store: Store) -> list[tuple[int, bytes]]:
    return store.results(batch, succeeded, after=after, limit=CHUNK)


def _joined(payloads: list[bytes]) -> bytes:
    return b"".join(payload + b"\n" for payload in payloads)
