"""Who may call what: keys are compared in constant time, and decided on by route, never by header or path text."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from fastapi import Request

from sglang_plug.specs import Auth

from .config import ServerConfig
from .errors import ApiError


def guard(level: Auth, config: ServerConfig) -> Callable[[Request], None]:
    """A dependency that refuses callers without the key for ``level`` with 401."""
    keys: tuple[str, ...]
    match level:
        case "public":
            keys = ()
        case "user":
            keys = tuple(key for key in (config.api_key, config.admin_api_key) if config.api_key and key)
        case "admin":
            strongest = config.admin_api_key or config.api_key
            keys = (strongest,) if strongest else ()

    def check(request: Request) -> None:
        if keys and not _holds(request.headers.get("authorization", ""), keys):
            raise ApiError(
                "Unauthorized: a valid API key is needed, as 'Authorization: Bearer KEY'",
                401,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    return check


def _holds(header: str, keys: tuple[str, ...]) -> bool:
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer":
        return False
    offered = given.strip().encode("utf-8", "replace")
    return any([hmac.compare_digest(offered, key.encode()) for key in keys])
