"""The exception for every refusal, and the JSON body of its response.

The body has OpenAI's nested ``error`` object, and the same keys at the top level, where clients of SGLang look. Each
``code`` is the one expected there: in the object a word or null, at the top level the HTTP status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.types import Scope

from sglang_plug import EngineError, RequestError

ERROR_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    421: "MisdirectedRequestError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}
SHOWN = 200
"""Characters of a caller's value that an error repeats."""
EXPECTED = "Input should be "
Details = dict[str, Any]
"""The description of one error by pydantic."""
RETRY_AFTER = 1
"""Seconds after which a client that was refused because too many requests wait may try again."""


class ApiError(Exception):
    """A refusal: HTTP status, message, the request field it is about, and OpenAI's error code if there is one."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        error = {
            "message": self.message,
            "type": ERROR_TYPES.get(self.status, "InternalServerError" if self.status >= 500 else "BadRequestError"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error, "object": "error", **error, "code": self.status}

    def response(self) -> Response:
        """Return the HTTP response."""
        return json_response(self.body(), self.status, self.headers)


class ErrorFormats(Protocol):
    """The formats of errors that groups of routes have chosen, see ``RouteGroup.errors``."""

    def response(self, scope: Scope, error: ApiError) -> Response | None:
        """Return the response in the format of the request's route; ``None``: it has none of its own."""


def error_response(scope: Scope, error: ApiError) -> Response:
    """Return the response to ``error`` in the format of the request's route."""
    formats: ErrorFormats | None = getattr(getattr(scope.get("app"), "state", None), "error_formats", None)
    response = None if formats is None else formats.response(scope, error)
    return error.response() if response is None else response


def error_line(scope: Scope, error: ApiError) -> bytes:
    """Return the body of ``error_response`` in one line, for an error in the middle of a stream."""
    body = bytes(error_response(scope, error).body)
    if b"\n" not in body:
        return body
    try:
        return json_bytes(json.loads(body))
    except ValueError:  # the format of the route is not JSON
        return json_bytes(error.body())


class WrongField(ValueError):
    """An error about one field, raised by a validator of a whole body, so that the refusal names the field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


LINE_BREAKS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Escapes of characters at which clients divide lines (``str.splitlines``), and which JSON does not escape."""


def json_bytes(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return ``value`` as JSON in one line; characters that UTF-8 cannot encode become ``?``.

    ``default`` returns what stands for a value that JSON does not have.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=default)
    return (text if text.isascii() else text.translate(LINE_BREAKS)).encode("utf-8", "replace")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def from_exception(error: BaseException) -> ApiError:
    """Return the refusal that a client gets for an exception, which is its cause; unexpected ones reveal nothing."""
    refusal = _refusal(error)
    if refusal is not error:
        refusal.__cause__ = error
    return refusal


def _refusal(error: BaseException) -> ApiError:
    match error:
        case ApiError():
            return error
        case ValidationError():
            return from_validation(error)
        case RequestValidationError():  # from a plugin's route that lets FastAPI read its parameters
            first = error.errors()[0]
            return _error_at(first["loc"][1:], first["msg"])
        case RequestError():
            headers = {"retry-after": str(RETRY_AFTER)} if error.status in (429, 503) else {}
            return ApiError(str(error), error.status, headers=headers)
        case EngineError():
            headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
            return ApiError(f"the engine is not running: {error}", 503, headers=headers)
        case _:
            return ApiError("internal error; the server's log has the details", 500)


def from_validation(error: ValidationError) -> ApiError:
    """Return the refusal for the first error of a body, named by its path.

    A value with several allowed forms fails in each: the message has the form that it comes closest to, or all of them.
    """
    errors: list[Details] = [dict(error) for error in error.errors(include_url=False, include_input=False)]
    location = errors[0]["loc"]
    fork = next((index for index, part in enumerate(location) if _is_internal(part)), None)
    if fork is None:
        return _first_error([errors[0]])
    forms = [error for error in errors if error["loc"][:fork] == location[:fork]]
    depths = [len(_path(error)) for error in forms]
    return _first_error([error for error, depth in zip(forms, depths, strict=True) if depth == max(depths)])


def _first_error(errors: Sequence[Details]) -> ApiError:
    """Return the first of ``errors``, joined with the messages of the others about the same field."""
    path = _path(errors[0])
    cause = errors[0].get("ctx", {}).get("error")
    if isinstance(cause, WrongField):
        return ApiError(str(cause), param=".".join(path)[:SHOWN])
    messages = [error["msg"] for error in errors if _path(error) == path]
    return _error_at(path, " or ".join([messages[0], *(text.removeprefix(EXPECTED) for text in messages[1:])]))


def _path(details: Details) -> list[str]:
    cause = details.get("ctx", {}).get("error")
    return [*_visible(details["loc"]), *([cause.field] if isinstance(cause, WrongField) else ())]


def _error_at(location: Sequence[str | int], text: str) -> ApiError:
    path = ".".join(_visible(location))
    message = text.removeprefix("Value error, ")
    return ApiError(f"{path[:SHOWN]}: {message}" if path else message, param=path[:SHOWN] or None)


def _visible(location: Sequence[str | int]) -> list[str]:
    return [str(part) for part in location if not _is_internal(part)]


def _is_internal(part: str | int) -> bool:
    """Return True for a union member that pydantic puts into paths, e.g. ``list[str]`` or ``function-after[…]``."""
    return isinstance(part, str) and (
        "[" in part
        or part in ("str", "int", "float", "bool", "dict")
        or part.startswith("constrained-")
        or part[:1].isupper()
    )
