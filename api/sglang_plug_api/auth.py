"""Who may call what: keys are compared in constant time, and decided on by route, never by header or path text."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request

from sglang_plug.specs import Auth

from .config import ServerConfig
from .errors import ApiError


def guard(level: Auth, config: ServerConfig) -> Callable[[Request], Coroutine[Any, Any, None]]:
    """A dependency that refuses callers without the key for ``level`` with 401.

    Asynchronous, although it waits for nothing: FastAPI would run a plain function in a thread, for every request.
    """
    own = (config.admin_api_key,) if config.admin_api_key else ()
    keys: tuple[str, ...]
    match level:
        case "public":
            keys = ()
        case "user":
            keys = (*config.api_keys, *own) if config.api_keys else ()
        case "admin":
            keys = own or config.api_keys

    async def check(request: Request) -> None:
        if keys and not any([_is_one_of(keys, offered) for offered in _offered(request)]):
            raise ApiError(
                "Unauthorized: a valid API key is needed, as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
                401,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    return check


def _offered(request: Request) -> Iterator[bytes]:
    """Every key that came with the request, as the bytes that were sent."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip().encode("latin-1")
    for key in request.headers.getlist("x-api-key"):
        yield key.strip().encode("latin-1")


def _is_one_of(keys: tuple[str, ...], offered: bytes) -> bool:
    return any([hmac.compare_digest(offered, key.encode()) for key in keys])
