"""Checks of what a route answers: JSON, events, and errors that say what is wrong."""

from __future__ import annotations

import json
from typing import Any

from .running_server import Answer

FIELDS = frozenset({"data", "event", "id", "retry", ""})
"""Fields of server-sent events; the empty one is a comment."""
TRACEBACK = b"Traceback (most recent call last)"


def check_content(where: str, answer: Answer) -> None:
    """Check that an answer is what its content type says."""
    assert TRACEBACK not in answer.body, f"{where}: the answer has a traceback of the server: {answer.body[:200]!r}"
    if answer.content_type == "application/json":
        try:
            answer.json()
        except ValueError as error:
            raise AssertionError(f"{where}: the answer is no JSON: {error}: {answer.body[:200]!r}") from error
    if answer.content_type == "text/event-stream":
        assert answer.body.endswith(b"\n\n"), f"{where}: the last event has no end: {answer.body[-100:]!r}"
        for block in answer.body.decode("utf-8", "strict").rstrip("\n").split("\n\n"):
            _check_event(where, block)


def _check_event(where: str, block: str) -> None:
    lines = [line.partition(":")[::2] for line in block.split("\n")]
    fields = {field for field, _ in lines}
    assert fields <= FIELDS, f"{where}: {block[:100]!r} is no event"
    assert "data" in fields or fields == {""}, f"{where}: an event without data: {block[:100]!r}"
    data = "\n".join(value.removeprefix(" ") for field, value in lines if field == "data")
    if data.startswith("{"):
        try:
            json.loads(data)
        except ValueError as error:
            raise AssertionError(f"{where}: the data of an event is no JSON: {error}: {data[:100]!r}") from error


def check_refusal(where: str, answer: Answer) -> None:
    """Check that a refusal is a JSON object that says what is wrong, where clients look for it."""
    try:
        content = answer.json()
    except ValueError:
        content = None
    message = _message(content)
    assert isinstance(message, str) and message.strip(), (
        f"{where}: status {answer.status} without an error message: {answer.body[:200]!r}; clients look for it in "
        "error.message of a JSON object, as ApiError has it"
    )


def _message(content: Any) -> Any:
    """Return ``error.message``; ``error`` and ``message`` alone are those of other protocols."""
    if not isinstance(content, dict):
        return None
    error = content.get("error", content)
    return error.get("message") if isinstance(error, dict) else error
