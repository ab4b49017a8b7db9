"""Lines of the result files, and the writing of these files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from sglang_plug import BatchRecord, ContentWriter, FileRecord, LineResult, Store, TokenCounts
from sglang_plug_api.answers.errors import json_bytes

from .lines import Line
from .records import ERROR_PREFIX, LINE_PREFIX, OUTPUT_PURPOSE, RESULT_PREFIX, new_record_id
from .route_call import RouteAnswer

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


class ResultFiles:
    """The result files of a batch that a worker holds as a whole.

    Args:
        store: has the results, and gets the files.
        batch: the batch.
        now: time of creation of the files in seconds since the epoch.
    """

    def __init__(self, store: Store, batch: BatchRecord, now: int) -> None:
        self._store = store
        self._batch = batch
        self._now = now
        self._contents: list[ContentWriter] = []
        self._written = set[int]()
        """Numbers of the lines whose results are in a file."""

    async def write_output(self) -> FileRecord | None:
        """Write the file of the lines that succeeded; return ``None`` if there are none.

        The content of a file is in the store then, but the file is not registered yet.
        """
        return await self._write(True, None)

    async def write_errors(self, expired: AsyncGenerator[list[Line], None] | None) -> FileRecord | None:
        """Write the file of the lines that failed, like ``write_output``, which was called before.

        ``expired`` are all lines of a batch that has expired: those without a result get an entry, too.
        """
        return await self._write(False, expired)

    async def discard(self) -> None:
        """Remove the contents of the files, which will not be registered."""
        for content in self._contents:
            await content.discard()

    async def _write(self, succeeded: bool, expired: AsyncGenerator[list[Line], None] | None) -> FileRecord | None:
        kind, prefix = ("output", RESULT_PREFIX) if succeeded else ("error", ERROR_PREFIX)
        id = new_record_id(prefix)
        content = await self._store.create_content(id)
        self._contents.append(content)
        try:
            after = 0
            while rows := await self._store.results(self._batch.id, succeeded, after=after, limit=CHUNK):
                await content.write(_joined([payload for _, payload in rows]))
                self._written.update(line for line, _ in rows)
                after = rows[-1][0]
            if expired is not None:
                async with aclosing(expired):
                    async for lines in expired:
                        late = [_payload(line, None, EXPIRED) for line in lines if line.number not in self._written]
                        await content.write(_joined(late))
            if not content.size:
                await content.discard()
                return None
            await content.commit()
        except BaseException:
            await content.discard()
            raise
        return FileRecord(
            id=id,
            purpose=OUTPUT_PURPOSE,
            filename=f"{self._batch.id}_{kind}.jsonl",
            bytes=content.size,
            created_at=self._now,
            owner=self._batch.owner,
        )


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


def _joined(payloads: list[bytes]) -> bytes:
    return b"".join(payload + b"\n" for payload in payloads)
