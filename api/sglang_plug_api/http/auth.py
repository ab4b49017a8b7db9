"""Authorization by API key: keys are compared in constant time; the route decides which key is needed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from starlette.exceptions import WebSocketException
from starlette.requests import HTTPConnection
from starlette.status import WS_1008_POLICY_VIOLATION

from sglang_plug.plugins.spec import Auth
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.callers import Callers, set_caller


def guard(level: Auth, config: ServerConfig) -> Callable[[HTTPConnection], Coroutine[Any, Any, None]]:
    """Return a dependency that refuses callers without a key for ``level`` with 401, and records the caller.

    It is asynchronous although it never waits: FastAPI would run a plain function in a thread for every request.
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
    callers = Callers(config)

    async def check(request: HTTPConnection) -> None:
        known = callers.known_keys(_sent_keys(request))
        set_caller(callers.of_keys(known))
        if keys and not set(keys) & set(known):
            if request.scope["type"] == "websocket":
                raise WebSocketException(WS_1008_POLICY_VIOLATION, "a valid API key is needed")
            raise ApiError(
                "Unauthorized: a valid API key is needed, as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
                401,
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    return check


def _sent_keys(request: HTTPConnection) -> Iterator[bytes]:
    """Yield every key in the request's headers, as the bytes that were sent."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip().encode("latin-1")
    for key in request.headers.getlist("x-api-key"):
        yield key.strip().encode("latin-1")
