"""Groups of routes: a router with its start, its stop and the format of its errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from sglang_plug import PluginError
from sglang_plug.plugins.registry import Component
from sglang_plug_api.answers.errors import ApiError

from .plugin_routes import PluginRoute

logger = logging.getLogger(__name__)

ErrorFormat = Callable[[ApiError, Request], Response]
"""Makes the response to a refusal, or to an unexpected error with status 500. The cause of the error, if there is one,
is the exception that it was made of. It must not read the body of the request. For an error in the middle of a stream,
the body of the response, which should be JSON, becomes one event or line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteGroup:
    """A router with its start, its stop and the format of its errors: the result of the target of a ``RouteSpec``."""

    router: APIRouter
    errors: ErrorFormat | None = None
    """Makes the response to every error on the paths of these routes, also before a route is called (a wrong key, a
    body that is too large, a shutdown) and in the middle of a stream; ``None``: OpenAI's format."""
    prefix: str | None = None
    """Paths that begin with it have the format of ``errors``, too, even if there is no such route: ``"/my-api/"``."""
    on_start: Callable[[Mapping[str, Any]], Awaitable[None] | None] | None = None
    """Called before the server listens, see ``Lifecycle.on_start``."""
    on_stop: Callable[[], Awaitable[None] | None] | None = None
    """Called after the last request, see ``Lifecycle.on_stop``."""


def as_route_group(component: Component, instance: object) -> RouteGroup:
    """Return the group that ``component`` made; a router becomes one. Raises ``PluginError`` for anything else."""
    router = instance.router if isinstance(instance, RouteGroup) else instance
    if not isinstance(router, APIRouter):
        raise PluginError(
            f"{component}: {component.spec.target!r} returned {type(router).__name__} instead of an APIRouter or "
            "RouteGroup"
        )
    return instance if isinstance(instance, RouteGroup) else RouteGroup(router=router)


class GroupErrorFormats:
    """The formats of errors of all groups of routes that have one of their own."""

    def __init__(self) -> None:
        self._groups: list[tuple[Component, RouteGroup, Sequence[PluginRoute]]] = []

    def add(self, component: Component, group: RouteGroup, routes: Sequence[PluginRoute]) -> None:
        """Use the format of ``group``, if it has one, on the paths of ``routes`` and below its prefix."""
        if group.errors is not None:
            self._groups.append((component, group, routes))

    def response(self, scope: Scope, error: ApiError) -> Response | None:
        """Return the response to ``error`` in the format of the request's path; ``None``: it has none of its own.

        A format that fails is logged, and the error is then told in OpenAI's format.
        """
        path = scope["path"]
        for component, group, routes in self._groups:
            if group.errors is None or not _has_path(group, routes, path):
                continue
            try:
                response = group.errors(error, Request(scope))
                if not isinstance(response, Response):
                    raise TypeError(f"it returned {type(response).__name__} instead of a Response")
                return response
            except Exception as failure:
                logger.error("the error format of %s failed: %s", component, failure, exc_info=failure)
                return None
        return None


def _has_path(group: RouteGroup, routes: Sequence[PluginRoute], path: str) -> bool:
    if group.prefix is not None and path.startswith(group.prefix):
        return True
    return any(route.takes(method, path) for route in routes for method in sorted(route.methods)[:1] or ["GET"])
