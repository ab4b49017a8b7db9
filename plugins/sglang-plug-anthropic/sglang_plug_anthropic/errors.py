"""Errors in the envelope of Anthropic's clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from sglang_plug import RequestError
from sglang_plug_api.plugin import ApiError, from_exception, json_response

logger = logging.getLogger(__name__)

OVERLOADED = 529
KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


class UnsupportedThreadError(ApiError):
    """The refusal of a conversation that the server would have to store; clients then send it whole.

    They recognize the refusal by the code in its details.
    """

    details: Mapping[str, Any] = {"error_code": "thread_unsupported_request"}

    def __init__(self) -> None:
        super().__init__(
            "'thread' is not supported: conversations are not stored here; send all messages without 'thread'",
            param="thread",
        )


def envelope(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    details = {"details": error.details} if isinstance(error, UnsupportedThreadError) else {}
    return {"type": "error", "error": {"type": kind, "message": error.message, **details}, "request_id": request_id}


def response(error: Exception, request_id: str) -> Response:
    """Return the response to a request that was refused or failed before its answer began."""
    refusal = logged(from_exception(error), error)
    is_full = isinstance(error, RequestError) and refusal.status == 503
    if is_full:  # clients know this as "try again later"; 503 remains for a server that cannot serve
        refusal = ApiError(refusal.message, OVERLOADED, headers=refusal.headers)
    return json_response(envelope(refusal, request_id), refusal.status, refusal.headers)


def logged(refusal: ApiError, error: Exception) -> ApiError:
    """Return ``refusal``; unexpected errors are logged, because they are not part of the answer."""
    if refusal.status == 500:
        logger.error("a request for a message failed", exc_info=error)
    return refusal
