"""The routes of a plugin's router, nested ones included, and the authorization of those that FastAPI does not guard."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

Check = Callable[[HTTPConnection], Coroutine[Any, Any, None]]
"""Raises an error if the sender may not call a route."""


@dataclass(frozen=True, slots=True)
class PluginRoute:
    """A route as the application answers it, with the prefixes of the routers around it."""

    path: str
    methods: frozenset[str]
    """Empty for web sockets and mounted applications."""
    endpoint: Any
    """``None`` for mounted applications."""
    is_mounted: bool


def plugin_routes(router: APIRouter) -> Iterator[PluginRoute]:
    """Yield all routes of ``router``."""
    for route in router.routes:
        nested = getattr(route, "effective_route_contexts", None)  # a nested router, in recent FastAPI
        for context in [route] if nested is None else nested():
            inner = getattr(context, "starlette_route", None) or context
            methods = frozenset(getattr(inner, "methods", None) or ())
            yield PluginRoute(
                getattr(inner, "path", ""), methods, getattr(inner, "endpoint", None), isinstance(inner, Mount)
            )


def guard_plain_routes(router: APIRouter, check: Check) -> None:
    """Let ``check`` decide about calls of routes that ignore the dependencies of a router.

    FastAPI's own routes follow them; those of Starlette and mounted applications do not. Raises ``TypeError`` for a
    kind of route that cannot be guarded.
    """
    for route in _innermost(router):
        match route:
            case APIRoute() | APIWebSocketRoute():
                pass
            case Mount():
                route.app = _Guarded(route.app, check)
            case Route() | WebSocketRoute():
                route.app = route.endpoint = _Guarded(route.app, check)
            case _:
                raise TypeError(f"a router cannot have routes of the type {type(route).__name__}")


def _innermost(router: APIRouter) -> Iterator[BaseRoute]:
    for route in router.routes:
        nested = getattr(route, "original_router", None)  # a nested router, in recent FastAPI
        if nested is None:
            yield route
        else:
            yield from _innermost(nested)


class _Guarded:
    """An ASGI application that only serves the senders that may call it."""

    def __init__(self, app: ASGIApp, check: Check) -> None:
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._check(HTTPConnection(scope))
        await self._app(scope, receive, send)
