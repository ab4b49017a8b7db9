"""The HTTP application: every route comes from a plugin, and none can replace another."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from sglang_plug import ConfigError, EngineError, Plugins, RequestError, RouteSpec, __version__
from sglang_plug.plugins.attribution import attributed, make_with_settings
from sglang_plug.plugins.registry import Component
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.answers.errors import ApiError, error_response, from_exception
from sglang_plug_api.protocol.processor_fields import add_processor_fields
from sglang_plug_api.service.fairness_key import FairnessKey
from sglang_plug_api.text.text_engine import TextEngine

from .auth import guard
from .hosts import CheckHost, HostPolicy
from .middleware import REQUEST_ID, BodyLimit, CatchAllErrors, Gate, GateState, HeadAsGet, RequestIds, failure
from .origins import CheckOrigin, reading_with_effects
from .plugin_routes import PluginRoute, include_routes, plugin_routes, refuse_clashes
from .request_body import Endpoint
from .route_group import GroupErrorFormats, as_route_group

logger = logging.getLogger(__name__)

OPTIONAL_ROUTES: Mapping[str, str] = {"/v1/messages": "anthropic", "/v1/messages/count_tokens": "anthropic"}
"""Maps paths that clients commonly call to the extra that installs the plugin that has them."""
PLUGIN_OF_EXTRA = (
    "the plugin sglang-plug-{0} adds it: pip install 'sglang-plug[{0}]', or pip install ./plugins/sglang-plug-{0} "
    "from a checkout"
)

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
REFERENCE = "#/components/schemas/{model}"


def build_app(engine: TextEngine, plugins: Plugins, gate: GateState) -> FastAPI:
    """Build the application with all routes of all plugins that fit the model's tasks.

    Raises ``ConfigError``, naming both plugins, if two register one method and path or if one route hides another.
    """
    config = engine.config
    limits: dict[str, int] = {}  # of the bodies, by path
    hosts = HostPolicy(config.allowed_hosts, config.host)
    effects: list[re.Pattern[str]] = []
    served: list[PluginRoute] = []
    heads: list[PluginRoute] = []
    formats = GroupErrorFormats()
    app = _App(
        title="sglang-plug",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=partial(_lifespan, engine),
        middleware=[
            Middleware(RequestIds),
            Middleware(CheckHost, policy=hosts),
            *_cors(config.allow_origins),
            Middleware(CheckOrigin, allowed=config.allow_origins, policy=hosts, effects=effects),
            Middleware(Gate, state=gate),
            Middleware(BodyLimit, limit=config.max_request_bytes, timeout=config.body_timeout, larger=limits),
            Middleware(HeadAsGet, routes=heads),
        ],
    )
    for kind in (Exception, ApiError, HTTPException, RequestValidationError, RequestError, EngineError):
        app.add_exception_handler(kind, _error_response)
    bodies = set[type[BaseModel]]()
    app.state.gate, app.state.endpoints, app.state.request_fields = gate, {}, engine.request_fields
    app.state.error_formats = formats
    app.state.fairness_key = FairnessKey(config.fairness_key, has_keys=bool(config.api_keys))
    tasks, others = set(engine.info["tasks"]), list[Component]()
    for component in [plugins.get("route", name) for name in plugins.names("route")]:
        spec = component.spec_as(RouteSpec)
        if spec.tasks and not spec.tasks & tasks:
            others.append(component)
            continue
        group = as_route_group(component, make_with_settings(component, engine))
        routes = list(plugin_routes(group.router, component))
        served += routes
        formats.add(component, group, routes)
        bodies |= {route.endpoint.body_model for route in routes if hasattr(route.endpoint, "body_model")}
        app.state.endpoints.update(_body_endpoints(routes))
        limits |= {route.path: route.endpoint.body_limit for route in routes if hasattr(route.endpoint, "body_limit")}
        effects += reading_with_effects(routes)
        with attributed(component, "to give its routes"):
            include_routes(app, group.router, guard(spec.auth, config))
    refuse_clashes(served)
    heads += [route for route in served if route.is_mounted or "HEAD" in route.methods]
    for component in others:
        _include_refusals(app, component, engine, served)
    app.openapi = lambda: _openapi(app, bodies, engine.request_fields)  # type: ignore[method-assign]
    return app


def _include_refusals(app: FastAPI, component: Component, engine: TextEngine, served: Sequence[PluginRoute]) -> None:
    """Let the routes of a component for other tasks say what the model can do, instead of not being there."""
    router = _refusing_router(component, engine, served)
    if router is not None:
        auth = component.spec_as(RouteSpec).auth
        app.include_router(router, dependencies=[Depends(guard(auth, engine.config))])


def _refusing_router(component: Component, engine: TextEngine, served: Sequence[PluginRoute]) -> APIRouter | None:
    """Return a router that refuses every call of the component's routes, but for those that are served.

    ``None`` if the routes cannot be built for this model, so that nothing is known of them.
    """
    try:
        router = as_route_group(component, make_with_settings(component, engine, is_used=False)).router
    except Exception as error:
        logger.debug("%s has no routes for this model: %s", component, error)
        return None

    async def refuse() -> Response:
        tasks = " or ".join(sorted(component.spec_as(RouteSpec).tasks))
        known = ", ".join(engine.info["tasks"])
        raise ApiError(f"this model does not support the task {tasks}; its tasks: {known}")

    refusing = APIRouter()
    for path, methods in _calls(plugin_routes(router, component), served):
        refusing.add_api_route(path, refuse, methods=methods, include_in_schema=False)
    return refusing if any(isinstance(route, APIRoute) for route in refusing.routes) else None


def _calls(routes: Iterable[PluginRoute], served: Sequence[PluginRoute]) -> Iterable[tuple[str, list[str]]]:
    """Yield the paths of ``routes`` with the methods that none of ``served`` answers."""
    for route in routes:
        free = [
            method for method in sorted(route.methods) if not any(other.takes(method, route.path) for other in served)
        ]
        if free and not route.is_mounted:
            yield route.path, free


@contextlib.asynccontextmanager
async def _lifespan(engine: TextEngine, _app: FastAPI) -> AsyncIterator[None]:
    """Close the storage after every router has shut down."""
    try:
        yield
    finally:
        await engine.server.storage.close()


class _App(FastAPI):
    """FastAPI application with one layer around everything else, Starlette's own error handling included."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return FastAPI's middleware stack with one more layer around it."""
        return CatchAllErrors(super().build_middleware_stack())


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that lets pages of ``origins`` call the server; none if there are no origins.

    Raises ``ConfigError`` for an entry that no browser sends as an origin and that would therefore never match.
    """
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--allow-origins: {origin!r} is not an origin; write it as https://host or http://host:port"
            )
    if not origins:
        return []
    own = [REQUEST_ID]
    allowed = ["*"]
    return [
        Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=allowed, allow_headers=allowed, expose_headers=own
        )
    ]


async def _error_response(request: Request, error: Exception) -> Response:
    """Answer with any error in one format; the details of unexpected errors go to the log only."""
    if isinstance(error, HTTPException):
        status = error.status_code
        path = request.scope["path"][:200]
        text = f"{error.detail}: {request.method} {path!r}"
        if status == 404:
            extra = OPTIONAL_ROUTES.get(path)
            remedy = f"; {PLUGIN_OF_EXTRA.format(extra)}" if extra else ""
            text = f"there is no route {path!r}{remedy}"
        return error_response(request.scope, ApiError(text, status, headers=error.headers))
    refusal = from_exception(error)
    if refusal.status != 500:
        return error_response(request.scope, refusal)
    return failure(request.scope, error)  # Starlette handles unexpected errors outside all middlewares


def _body_endpoints(routes: Iterable[PluginRoute]) -> dict[str, Endpoint]:
    """Map each POST path to its endpoint if that reads its body itself; a batch calls these for its lines."""
    return {
        route.path: route.endpoint
        for route in routes
        if "POST" in route.methods and hasattr(route.endpoint, "body_model")
    }


def _openapi(app: FastAPI, bodies: Iterable[type[BaseModel]], fields: RequestFields) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document, completed with the bodies that routes read themselves."""
    if app.openapi_schema is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Duplicate Operation ID")  # a route with two methods; named anew below
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path, calls in document.get("paths", {}).items():
            for method, call in calls.items():
                call["operationId"] = re.sub(r"\W+", "_", method + path).rstrip("_")
        models = sorted(bodies, key=lambda model: model.__name__)
        _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REFERENCE)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions.get("$defs", {}))
        add_processor_fields(schemas, fields)
        app.openapi_schema = document
    return app.openapi_schema
