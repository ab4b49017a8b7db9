"""No route of a plugin answers requests for a route of another plugin."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from sglang_plug import ConfigError, Plugins
from sglang_plug_api.http.plugin_routes import plugin_routes, refuse_clashes

PLUGINS = Plugins.discover()
FIRST, SECOND = (PLUGINS.get("route", name) for name in ("chat", "models"))


def router(*paths: str, method: str = "POST") -> APIRouter:
    router = APIRouter()
    for path in paths:
        router.add_api_route(path, lambda: None, methods=[method])
    return router


def nested(path: str) -> APIRouter:
    outer = APIRouter()
    outer.include_router(router(path), prefix="/outer")
    return outer


def mounted(path: str) -> APIRouter:
    router = APIRouter()
    router.mount(path, FastAPI())
    return router


def clash(first: APIRouter, second: APIRouter) -> str | None:
    try:
        refuse_clashes([*plugin_routes(first, FIRST), *plugin_routes(second, SECOND)])
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (router("/a"), router("/a")),
        (router("/a/{x}"), router("/a/{y}")),
        (router("/a/{x}"), router("/a/{y}/b", "/a/c")),
        (router("/{rest:path}"), router("/v1/chat/completions")),
        (router("/a/{x}"), router("/a/special")),
        (mounted("/v1"), router("/v1/models")),
        (mounted(""), router("/v1/models")),
        (nested("/a"), router("/outer/a")),
        (router("/outer/{x}"), nested("/a")),
    ],
    ids=[
        "same",
        "same pattern",
        "one of two",
        "everything",
        "pattern",
        "mounted",
        "at the root",
        "within",
        "within, 2",
    ],
)
def test_a_path_that_is_answered_already_is_refused(first: Any, second: Any) -> None:
    message = clash(first, second)
    assert (
        message is not None
        and "route 'chat' from sglang-plug" in message
        and "route 'models' from sglang-plug" in message
    )
    assert "--block-plugin route:models" in message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (router("/a", method="GET"), router("/a", method="POST")),
        (router("/a/special"), router("/a/{x}")),
        (router("/v1/models"), router("/{rest:path}")),
        (router("/v1/models"), mounted("/v1")),
        (mounted("/v1"), router("/v2/models")),
        (mounted("/v1"), router("/v10")),
        (nested("/a"), router("/a")),
    ],
    ids=["methods", "pattern after", "everything after", "mounted after", "sibling", "longer name", "prefix"],
)
def test_what_takes_only_what_is_left_is_allowed(first: Any, second: Any) -> None:
    assert clash(first, second) is None


def test_a_component_may_order_its_own_routes() -> None:
    refuse_clashes([*plugin_routes(router("/a/{x}", "/a/special"), FIRST)])
