"""The HTTP application: every route comes from a plugin, and none can replace another."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Sequence
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

from sglang_plug import ConfigError, Plugins, RequestError, RouteSpec, __version__
from sglang_plug.attribution import make
from sglang_plug.engine.client import EngineError
from sglang_plug.plugins import Component

from .auth import guard
from .bodies import Endpoint
from .claims import Claim, claims_of, refuse_clashes
from .errors import ApiError, from_exception
from .job import new_id
from .middleware import REQUEST_ID, BodyLimit, Gate, GateState, RequestIds, callers_id
from .text import TextEngine

logger = logging.getLogger(__name__)

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
REFERENCE = "#/components/schemas/{model}"


def build_app(engine: TextEngine, plugins: Plugins, gate: GateState) -> FastAPI:
    """All routes of all plugins that fit the model's tasks.

    Raises ``ConfigError`` if two claim one method and path, or one answers in another's place, naming both.
    """
    config = engine.config
    limits: dict[str, int] = {}
    app = FastAPI(
        title="sglang-plug",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        middleware=[
            *_cors(config.allow_origins),
            Middleware(RequestIds),
            Middleware(Gate, state=gate),
            Middleware(BodyLimit, limit=config.max_request_bytes, timeout=config.body_timeout, larger=limits),
        ],
    )
    app.add_exception_handler(Exception, _answer)
    for kind in (ApiError, HTTPException, RequestValidationError, RequestError, EngineError):
        app.add_exception_handler(kind, _answer)
    claims: list[Claim] = []
    bodies = set[type[BaseModel]]()
    app.state.gate, app.state.endpoints = gate, {}
    tasks = set(engine.info["tasks"])
    for component in _chosen(plugins):
        spec = component.spec
        assert isinstance(spec, RouteSpec)
        if spec.tasks and not spec.tasks & tasks:
            continue
        router = make(component, engine, contract=APIRouter)
        claims += claims_of(router, component)
        bodies |= _bodies(router)
        app.state.endpoints.update(_readers(router))
        limits.update(_body_limits(router))
        app.include_router(router, dependencies=[Depends(guard(spec.auth, config))])
    refuse_clashes(claims)
    app.openapi = lambda: _openapi(app, bodies)  # type: ignore[method-assign]
    return app


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """What lets pages of ``origins`` call the server; nothing if there are none, so that browsers refuse.

    Raises ``ConfigError`` for what no browser sends as an origin, which would never match.
    """
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ConfigError(f"--allow-origins: {origin!r} is no origin; write it as https://host or http://host:port")
    if not origins:
        return []
    own = [REQUEST_ID]
    every = ["*"]
    return [
        Middleware(CORSMiddleware, allow_origins=origins, allow_methods=every, allow_headers=every, expose_headers=own)
    ]


def _chosen(plugins: Plugins) -> list[Component]:
    return [plugins.get("route", name) for name in plugins.names("route")]


async def _answer(request: Request, error: Exception) -> Response:
    """Every error in one shape; what nobody expected goes to the log and stays out of the answer."""
    if isinstance(error, HTTPException):
        status = error.status_code
        path = request.scope["path"][:200]
        text = f"there is no route {path!r}" if status == 404 else f"{error.detail}: {request.method} {path!r}"
        return ApiError(text, status, headers=error.headers).response()
    refusal = from_exception(error)
    if refusal.status != 500:
        return refusal.response()
    id = (callers_id(request.scope) or new_id().encode()).decode("ascii")
    logger.error("%s %s failed, request %s", request.method, request.scope["path"], id, exc_info=error)
    response = refusal.response()
    response.headers[REQUEST_ID] = id  # Starlette answers what nobody expected around all middlewares
    return response


def _bodies(router: APIRouter) -> set[type[BaseModel]]:
    """The bodies that a router's routes read themselves, see ``bodies.takes``."""
    endpoints = [route.endpoint for route in router.routes if isinstance(route, APIRoute)]
    return {endpoint.body_model for endpoint in endpoints if hasattr(endpoint, "body_model")}


def _readers(router: APIRouter) -> dict[str, Endpoint]:
    """POST path -> endpoint that reads its body itself: what other routes may call in the caller's place."""
    return {
        route.path: route.endpoint
        for route in router.routes
        if isinstance(route, APIRoute) and "POST" in (route.methods or ()) and hasattr(route.endpoint, "body_model")
    }


def _body_limits(router: APIRouter) -> dict[str, int]:
    """Path -> bytes, of the endpoints that say themselves how large a body they take (``body_limit``)."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    return {route.path: route.endpoint.body_limit for route in routes if hasattr(route.endpoint, "body_limit")}


def _openapi(app: FastAPI, bodies: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """FastAPI's document, with the bodies that it does not know of."""
    if app.openapi_schema is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Duplicate Operation ID")  # a route with two methods; named anew below
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path, calls in document.get("paths", {}).items():
            for method, call in calls.items():
                call["operationId"] = re.sub(r"\W+", "_", method + path).rstrip("_")
        models = sorted(bodies, key=lambda model: model.__name__)
        _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REFERENCE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions.get("$defs", {}))
        app.openapi_schema = document
    return app.openapi_schema
