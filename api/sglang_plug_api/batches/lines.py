"""Lines of a batch's input: read in groups, and checked before any of them runs."""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from sglang_plug_api.answers.errors import SHOWN, json_bytes

MAX_CUSTOM_ID = 512
MAX_ERRORS = 100
"""Maximum number of faults of a file that are reported."""
BATCH_PRIORITY = -1
"""Priority of batch lines, below the default of interactive requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One request of a batch."""

    number: int
    """Number of the line from 1, counting blank lines."""
    custom_id: str
    body: bytes
    """JSON body for the route."""
    width: int
    """Number of sequences that it requests."""


class LineError(Exception):
    """A line that cannot be run: OpenAI's code, message, and the field."""

    def __init__(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line
        self.param = param

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for the batch's ``errors``."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Result of checking a file: the number of lines, and their faults."""

    total: int
    errors: tuple[dict[str, Any], ...]


class _Form(BaseModel):
    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: str
    url: str
    body: dict[str, Any]


def parse_line(raw: bytes, number: int, endpoint: str) -> Line:
    """Return the request on a line. Raises ``LineError``."""
    try:
        form = _Form.model_validate_json(raw)
        request = _checked(form, number, endpoint)
        body = json_bytes(_at_low_priority(request))
    except ValidationError as error:
        raise _explained(error, number) from None
    except (ValueError, RecursionError) as error:
        raise LineError("invalid_json_line", f"the line is not valid JSON: {str(error)[:SHOWN]}", number) from None
    return Line(number=number, custom_id=form.custom_id, body=body, width=_width(request))


async def read_lines(
    content: AsyncGenerator[bytes, None], endpoint: str, max_bytes: int
) -> AsyncGenerator[list[Line], None]:
    """Yield every request of a file, those of each part of its content together.

    Raises ``LineError`` at the first invalid one.
    """
    splitter = LineSplitter(max_bytes)
    async with aclosing(content):
        async for part in content:
            yield await asyncio.to_thread(_parsed, splitter.feed(part), endpoint)
    yield _parsed(splitter.end(), endpoint)


async def check_file(
    content: AsyncGenerator[bytes, None], endpoint: str, *, max_lines: int, max_bytes: int
) -> FileCheck:
    """Return all faults of a file, up to ``MAX_ERRORS``.

    Args:
        content: the file.
        endpoint: the route that every line must name.
        max_lines: maximum number of requests.
        max_bytes: longest line.
    """
    splitter, checker = LineSplitter(max_bytes), _Checker(endpoint, max_lines)
    async with aclosing(content):
        async for part in content:
            if not await asyncio.to_thread(checker.check, splitter.feed(part)):
                return checker.result()
    checker.check(splitter.end())
    return checker.result()


class LineSplitter:
    """Splits content that arrives in parts into the lines that are not blank, with their numbers from 1.

    Args:
        max_bytes: longest line, with its newline.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 0
        self._partial_line = bytearray()

    def feed(self, part: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that end in ``part``. Raises ``LineError`` for a line that is too long."""
        self._partial_line += part
        start = 0
        while end := self._partial_line.find(b"\n", start) + 1:
            raw = bytes(self._partial_line[start:end])
            start = end
            yield from self._line(raw)
        del self._partial_line[:start]
        if len(self._partial_line) > self._max_bytes + len(BOM_UTF8):
            yield from self.end()

    def end(self) -> Iterator[tuple[int, bytes]]:
        """Yield the last line if it has no newline."""
        if self._partial_line:
            yield from self._line(bytes(self._partial_line))
            self._partial_line.clear()

    def _line(self, raw: bytes) -> Iterator[tuple[int, bytes]]:
        self._number += 1
        raw = raw.removeprefix(BOM_UTF8) if self._number == 1 else raw
        if len(raw) > self._max_bytes:
            raise LineError("line_too_long", f"the line is longer than {self._max_bytes} bytes", self._number)
        if raw.strip():
            yield self._number, raw


class _Checker:
    """Collects the faults of a file."""

    def __init__(self, endpoint: str, max_lines: int) -> None:
        self._endpoint, self._max_lines = endpoint, max_lines
        self._line_of_id: dict[str, int] = {}
        self._errors: list[dict[str, Any]] = []
        self._total = 0

    def check(self, lines: Iterator[tuple[int, bytes]]) -> bool:
        """Check lines; return False if the rest of the file need not be read."""
        try:
            for number, raw in lines:
                self._total += 1
                if self._total > self._max_lines:
                    text = f"the file has more than {self._max_lines} requests"
                    raise LineError("too_many_lines", text, number)
                self._check_line(number, raw)
                if len(self._errors) == MAX_ERRORS:
                    return False
        except LineError as error:
            self._errors.append(error.as_dict())
            return False
        return True

    def result(self) -> FileCheck:
        """Return the faults."""
        if not self._total:
            self._errors.append(LineError("empty_file", "the file has no requests", None).as_dict())
        return FileCheck(self._total, tuple(self._errors))

    def _check_line(self, number: int, raw: bytes) -> None:
        try:
            line = parse_line(raw, number, self._endpoint)
            first = self._line_of_id.setdefault(line.custom_id, number)
            if first != number:
                text = f"custom_id {line.custom_id[:SHOWN]!r} is that of line {first} already"
                raise LineError("duplicate_custom_id", text, number, "custom_id")
        except LineError as error:
            self._errors.append(error.as_dict())


def _parsed(lines: Iterator[tuple[int, bytes]], endpoint: str) -> list[Line]:
    return [parse_line(raw, number, endpoint) for number, raw in lines]


def _checked(form: _Form, number: int, endpoint: str) -> dict[str, Any]:
    if form.method != "POST":
        raise LineError("invalid_method", f"method must be 'POST', not {form.method[:40]!r}", number, "method")
    url = form.url if form.url.startswith("/v1/") else f"/v1{form.url}"
    if url != endpoint:
        text = f"url {form.url[:SHOWN]!r} is not the batch's endpoint {endpoint!r}"
        raise LineError("invalid_url", text, number, "url")
    if form.body.get("stream"):
        raise LineError("invalid_request", "a batch cannot stream: leave stream out", number, "body.stream")
    return form.body


def _explained(error: ValidationError, number: int) -> LineError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))[:SHOWN]
    match first["type"]:
        case "missing":
            return LineError("missing_required_parameter", f"{field} is missing", number, field)
        case "json_invalid" | "model_type":
            return LineError("invalid_json_line", f"the line must be a JSON object: {first['msg'][:SHOWN]}", number)
        case _:
            return LineError("invalid_request", f"{field}: {first['msg'][:SHOWN]}", number, field)


def _at_low_priority(body: dict[str, Any]) -> dict[str, Any]:
    """Limit the priority, since batches must not overtake interactive requests; the route refuses invalid values."""
    priority = body.get("priority")
    if priority is None:
        return {**body, "priority": BATCH_PRIORITY}
    if isinstance(priority, int) and not isinstance(priority, bool):
        return {**body, "priority": min(priority, BATCH_PRIORITY)}
    return body


def _width(body: dict[str, Any]) -> int:
    """Return prompts times outputs; invalid values count as one, since the route refuses them."""
    inputs = body.get("prompt", body.get("input"))
    prompts = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
    outputs = body.get("n")
    return prompts * (outputs if isinstance(outputs, int) and outputs > 0 else 1)
