"""One exception for every refusal, and the body it is answered with.

The body has OpenAI's nested ``error`` object, and the same keys at the top level, where clients of SGLang look. Either
has the ``code`` that is expected there: in the object a word, or null where there is none for it; at the top level the
HTTP status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from sglang_plug import RequestError
from sglang_plug.engine.client import EngineError

KINDS: Mapping[int, str] = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    503: "ServiceUnavailableError",
}
SHOWN = 200
"""Characters of a caller's value that an error repeats."""
EXPECTED = "Input should be "
Details = dict[str, Any]
"""What pydantic tells of one error."""
RETRY_AFTER = 1
"""Seconds after which somebody who was turned away as too much is waiting may ask again."""


class ApiError(Exception):
    """A refusal: HTTP status, message, the request field it is about, and OpenAI's word for it if there is one."""

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
        self.message, self.status, self.param, self.code, self.headers = message, status, param, code, headers

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        error = {
            "message": self.message,
            "type": KINDS.get(self.status, "InternalServerError" if self.status >= 500 else "BadRequestError"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error, "object": "error", **error, "code": self.status}

    def response(self) -> Response:
        """The HTTP answer."""
        return json_response(self.body(), self.status, self.headers)


class WrongField(ValueError):
    """What a validator of a whole body raises about one of its fields, so that the refusal names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def json_bytes(value: Any) -> bytes:
    """``value`` as JSON; characters that UTF-8 has no bytes for become ``?``."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def from_exception(error: Exception) -> ApiError:
    """What a client is told about an exception; what nobody expected stays hidden."""
    match error:
        case ApiError():
            return error
        case ValidationError():
            return from_validation(error)
        case RequestValidationError():  # of a plugin's route that lets FastAPI read its parameters
            first = error.errors()[0]
            return _wrong_at(first["loc"][1:], first["msg"])
        case RequestError():
            headers = {"retry-after": str(RETRY_AFTER)} if error.status == 503 else {}
            return ApiError(str(error), error.status, headers=headers)
        case EngineError():
            headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
            return ApiError(f"the engine is not running: {error}", 503, headers=headers)
        case _:
            return ApiError("internal error; the server's log has the details", 500)


def from_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body, named by its path.

    A value of several allowed forms is wrong in each: told is the form that it is closest to, or all of them.
    """
    found: list[Details] = [dict(one) for one in error.errors(include_url=False, include_input=False)]
    place = found[0]["loc"]
    fork = next((index for index, part in enumerate(place) if _is_internal(part)), None)
    if fork is None:
        return _first([found[0]])
    forms = [one for one in found if one["loc"][:fork] == place[:fork]]
    depths = [len(_path(one)) for one in forms]
    return _first([one for one, depth in zip(forms, depths, strict=True) if depth == max(depths)])


def _first(found: Sequence[Details]) -> ApiError:
    """The first of ``found``, and what others say of the same place."""
    where = _path(found[0])
    cause = found[0].get("ctx", {}).get("error")
    if isinstance(cause, WrongField):
        return ApiError(str(cause), param=".".join(where)[:SHOWN])
    same = [one["msg"] for one in found if _path(one) == where]
    return _wrong_at(where, " or ".join([same[0], *(text.removeprefix(EXPECTED) for text in same[1:])]))


def _path(found: Details) -> list[str]:
    cause = found.get("ctx", {}).get("error")
    return [*_visible(found["loc"]), *([cause.field] if isinstance(cause, WrongField) else ())]


def _wrong_at(place: Sequence[str | int], text: str) -> ApiError:
    where = ".".join(_visible(place))
    message = text.removeprefix("Value error, ")
    return ApiError(f"{where[:SHOWN]}: {message}" if where else message, param=where[:SHOWN] or None)


def _visible(place: Sequence[str | int]) -> list[str]:
    return [str(part) for part in place if not _is_internal(part)]


def _is_internal(part: str | int) -> bool:
    """Union members that pydantic puts into paths, e.g. ``list[str]`` or ``function-after[…]``."""
    return isinstance(part, str) and (
        "[" in part
        or part in ("str", "int", "float", "bool", "dict")
        or part.startswith("constrained-")
        or part[:1].isupper()
    )
