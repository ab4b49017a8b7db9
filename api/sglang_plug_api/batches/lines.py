"""Lines of a batch's input: read one at a time, checked before anything runs."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from sglang_plug_api.errors import SHOWN, json_bytes

MAX_CUSTOM_ID = 512
MAX_ERRORS = 100
"""Faults of a file that are reported; more are not looked for."""
BATCH_PRIORITY = -1
"""Below what interactive requests have unless they say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One request of a batch."""

    number: int
    """From 1, blank lines counted."""
    custom_id: str
    body: bytes
    """JSON, as the route is to read it."""
    width: int
    """Sequences that it asks for."""


class LineError(Exception):
    """A line that cannot be run: OpenAI's code, message, and the field."""

    def __init__(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.line, self.param = code, message, line, param

    def shown(self) -> dict[str, Any]:
        """An entry of the batch's ``errors``."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class Check:
    """What a file holds: how many lines, or what is wrong with them."""

    total: int
    errors: tuple[dict[str, Any], ...]


class _Form(BaseModel):
    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: str
    url: str
    body: dict[str, Any]


def parse_line(raw: bytes, number: int, endpoint: str) -> Line:
    """The request on a line. Raises ``LineError``."""
    try:
        form = _Form.model_validate_json(raw)
        found = _checked(form, number, endpoint)
        body = json_bytes(_at_low_priority(found))
    except ValidationError as error:
        raise _explained(error, number) from None
    except (ValueError, RecursionError) as error:
        raise LineError("invalid_json_line", f"the line is not valid JSON: {str(error)[:SHOWN]}", number) from None
    return Line(number=number, custom_id=form.custom_id, body=body, width=_width(found))


def read_lines(path: Path, endpoint: str, max_bytes: int) -> Iterator[Line]:
    """Every request of a file. Raises ``LineError`` at the first that cannot be run."""
    for number, raw in _raw_lines(path, max_bytes):
        yield parse_line(raw, number, endpoint)


def check_file(path: Path, endpoint: str, *, max_lines: int, max_bytes: int) -> Check:
    """Everything that is wrong with a file, up to ``MAX_ERRORS`` faults.

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
                errors.append(error.shown())
                if len(errors) == MAX_ERRORS:
                    break
    except LineError as error:
        errors.append(error.shown())
    if not total:
        errors.append(LineError("empty_file", "the file has no requests", None).shown())
    return Check(total, tuple(errors))


def _raw_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
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
    where = ".".join(map(str, first["loc"]))[:SHOWN]
    match first["type"]:
        case "missing":
            return LineError("missing_required_parameter", f"{where} is missing", number, where)
        case "json_invalid" | "model_type":
            return LineError("invalid_json_line", f"the line must be a JSON object: {first['msg'][:SHOWN]}", number)
        case _:
            return LineError("invalid_request", f"{where}: {first['msg'][:SHOWN]}", number, where)


def _at_low_priority(body: dict[str, Any]) -> dict[str, Any]:
    """A batch cannot put itself before interactive requests. What is no number is left for the route to refuse."""
    given = body.get("priority")
    if given is None:
        return {**body, "priority": BATCH_PRIORITY}
    if isinstance(given, int) and not isinstance(given, bool):
        return {**body, "priority": min(given, BATCH_PRIORITY)}
    return body


def _width(body: dict[str, Any]) -> int:
    """Prompts times outputs; nonsense counts as one, the route refuses it."""
    given = body.get("prompt", body.get("input"))
    prompts = len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1
    outputs = body.get("n")
    return prompts * (outputs if isinstance(outputs, int) and outputs > 0 else 1)
