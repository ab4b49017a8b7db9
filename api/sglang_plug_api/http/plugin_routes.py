"""The routes of a plugin's router: who owns which, and the authorization of those that FastAPI does not guard."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from sglang_plug import ConfigError
from sglang_plug.plugins.registry import Component

PARAMETER = re.compile(r"\{[^}]*\}")
SAMPLE = "0"
"""A value that nearly every kind of path parameter accepts."""
Check = Callable[[HTTPConnection], Coroutine[Any, Any, None]]
"""Raises an error if the sender may not call a route."""


@dataclass(frozen=True, slots=True)
class PluginRoute:
    """A route of a component as the application answers it, with the prefixes of the routers around it."""

    component: Component
    path: str
    methods: frozenset[str]
    """Empty for web sockets and mounted applications."""
    endpoint: Any
    """``None`` for mounted applications."""
    is_mounted: bool
    """True for mounted applications, which answer all methods and all paths below theirs."""

    def takes(self, method: str, path: str) -> bool:
        """Return True if it answers a call of ``path``."""
        pattern, _, _ = compile_path(f"{self.path.rstrip('/')}/{{below:path}}" if self.is_mounted else self.path)
        return (self.is_mounted or method in self.methods) and pattern.match(path) is not None


def plugin_routes(router: APIRouter, component: Component) -> Iterator[PluginRoute]:
    """Yield all routes of a component's router, nested routers included."""
    for route in router.routes:
        nested = getattr(route, "effective_route_contexts", None)  # a nested router, in recent FastAPI
        for context in [route] if nested is None else nested():
            inner = getattr(context, "starlette_route", None) or context
            methods = frozenset(getattr(inner, "methods", None) or ())
            path, endpoint = getattr(inner, "path", ""), getattr(inner, "endpoint", None)
            yield PluginRoute(component, path, methods, endpoint, isinstance(inner, Mount))


def include_routes(app: FastAPI, router: APIRouter, check: Check) -> None:
    """Add the routes of ``router`` to ``app``, for the senders that ``check`` lets through.

    Raises ``TypeError`` for a kind of route that cannot be guarded.
    """
    _guard_plain_routes(router, check)
    app.include_router(router, dependencies=[Depends(check)])
    if not any(getattr(route, "original_router", None) is router for route in app.routes):
        # older FastAPI copies the routes of a router, without its mounted applications
        app.routes.extend(route for route in router.routes if isinstance(route, Mount))


def _guard_plain_routes(router: APIRouter, check: Check) -> None:
    """Let ``check`` decide about calls of routes that ignore the dependencies of a router.

    FastAPI's own routes follow them; those of Starlette and mounted applications do not.
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


def refuse_clashes(routes: Sequence[PluginRoute]) -> None:
    """Raise ``ConfigError`` if two components have one call, or a pattern of one matches a later path of another.

    ``routes`` are in the order in which the application matches them.
    """
    for index, route in enumerate(routes):
        sample = PARAMETER.sub(SAMPLE, route.path)
        for method in sorted(route.methods):
            for earlier in routes[:index]:
                if earlier.component is not route.component and earlier.takes(method, sample):
                    raise ConfigError(_clash(method, route, earlier))


def _clash(method: str, route: PluginRoute, earlier: PluginRoute) -> str:
    remedy = f"block one with --block-plugin route:{route.component.spec.name}"
    if PARAMETER.sub("{}", earlier.path) == PARAMETER.sub("{}", route.path):
        return f"{method} {route.path} is claimed by {earlier.component} and by {route.component}; {remedy}"
    return (
        f"{method} {route.path} of {route.component} would be answered by {earlier.path} of {earlier.component}; "
        f"{remedy}, or route:{earlier.component.spec.name}"
    )
