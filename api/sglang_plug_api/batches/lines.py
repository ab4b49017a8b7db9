"""Lines of a batch's input: read one at a time, and checked before any of them runs."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from sglang_plug_api.http.errors import SHOWN, json_bytes

MAX_CUSTOM_ID = 512
MAX_ERRORS = 100
"""Most faults of a file that are reported."""
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
        self.code, self.message, self.line, self.param = code, message, line, param

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


def read_lines(path: Path, endpoint: str, max_bytes: int) -> Iterator[Line]:
    """Yield every request of a file. Raises ``LineError`` at the first invalid one."""
    for number, raw in _raw_lines(path, max_bytes):
        yield parse_line(raw, number, endpoint)


def check_file(path: Path, endpoint: str, *, max_lines: int, max_bytes: int) -> FileCheck:
    """Return all faults of a file, up to ``MAX_ERRORS``.

    Args:
        path: the file.
        endpoint: the route that every line must name.
        max_lines: most requests.
        max_bytes: longest line.
    """
    seen: dict[str, int] = {}
    errors: list[dict[str, Any]] = []
    total = 0
    try:
        for number, raw in _raw_lines(path, max_bytes):
            total += 1
            if total > max_lines:
                raise LineError("too_many_lines", f"the file has more than {max_lines} requests", number)
            try:
                line = parse_line(raw, number, endpoint)
                first = seen.setdefault(line.custom_id, number)
                if first != number:
                    text = f"custom_id {line.custom_id[:SHOWN]!r} is that of line {first} already"
                    raise LineError("duplicate_custom_id", text, number, "custom_id")
            except LineError as error:
                errors.append(error.as_dict())
                if len(errors) == MAX_ERRORS:
                    break
    except LineError as error:
        errors.append(error.as_dict())
    if not total:
        errors.append(LineError("empty_file", "the file has no requests", None).as_dict())
    return FileCheck(total, tuple(errors))


def _raw_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_bytes + 1):
            number += 1
            raw = raw.removeprefix(BOM_UTF8) if number == 1 else raw
            if len(raw) > max_bytes:
                raise LineError("line_too_long", f"the line is longer than {max_bytes} bytes", number)
            if raw.strip():
                yield number, raw


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
