"""Tests of the authentication of plugin routes for which FastAPI runs no dependencies, and of nested routers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from sglang_plug import PluginError, Plugins
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState

ROUTES = """
    from fastapi import APIRouter, FastAPI, WebSocket
    from starlette.endpoints import HTTPEndpoint
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Host, Router
    from pydantic import BaseModel
    from sglang_plug_api.service.callers import current_caller
    from sglang_plug_api.plugin import read_body, takes

    @hookimpl
    def register_routes():
        yield RouteSpec(name="extra", target=f"{__name__}:build", auth="AUTH")

    async def plain(request: Request):
        return PlainTextResponse(f"plain {current_caller().owner[:4]}")

    class Endpoint(HTTPEndpoint):
        async def get(self, request):
            return PlainTextResponse("endpoint")

    async def echo(socket):
        await socket.accept()
        await socket.send_text("plain socket")
        await socket.close()

    class Body(BaseModel):
        number: int = 0

    def build(engine):
        below = FastAPI()

        @below.get("/z")
        async def z():
            return "mounted"

        inner = APIRouter()
        inner.add_route("/plain", plain)

        @takes(inner, "/twice", Body)
        async def twice(request: Request):
            return {"twice": 2 * (await read_body(request, Body)).number}

        @inner.api_route("/reset", methods=["GET", "POST"])
        async def reset():
            return "done"

        router = APIRouter()
        router.add_route("/plain", plain)
        router.add_route("/endpoint", Endpoint)
        router.mount("/mount", below)
        router.add_websocket_route("/socket", echo)

        @router.websocket("/api-socket")
        async def api_socket(socket: WebSocket):
            await socket.accept()
            await socket.send_text("socket")
            await socket.close()

        router.include_router(inner, prefix="/nested")
        MORE
        return router
"""
BUILT_IN = Plugins.discover().names("route")
PATHS = ("/plain", "/endpoint", "/mount/z", "/nested/plain")
KEYS = {"api_keys": ("key",), "admin_api_key": "admin"}


@pytest.fixture
def app_of(text_engine: Any, discover: Any, plugin_file: Any) -> Callable[..., Any]:
    """Return a function that makes an app with only the plugin's routes; ``more`` is a line of their ``build``."""

    def make(auth: str, more: str = "", **options: Any) -> Any:
        file = plugin_file("extra", ROUTES.replace("AUTH", auth).replace("MORE", more))
        plugins = discover(file, block=tuple(f"route:{name}" for name in BUILT_IN))
        return build_app(text_engine(**options), plugins, GateState())

    return make


async def status_of(app: Any, path: str, key: str | None) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get(path, headers=headers)).status_code


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_needs_the_key_that_the_spec_names(app_of: Any, path: str) -> None:
    for auth, opened_by in (
        ("admin", {"admin"}),
        ("user", {"admin", "key"}),
        ("public", {None, "wrong", "key", "admin"}),
    ):
        app = app_of(auth, **KEYS)
        for key in (None, "wrong", "key", "admin"):
            assert await status_of(app, path, key) == (200 if key in opened_by else 401), (auth, key)


async def test_a_plain_route_knows_its_caller(app_of: Any) -> None:
    transport = httpx.ASGITransport(app_of("user", api_keys=("a", "b")))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        texts = [(await client.get("/plain", headers={"x-api-key": key})).text for key in "ab"]
    assert texts[0] != texts[1] and all(len(text) == len("plain 0000") for text in texts)


@pytest.mark.parametrize("path", ["/socket", "/api-socket"])
def test_web_sockets_need_the_key_too(app_of: Any, path: str) -> None:
    client = TestClient(app_of("user", **KEYS), base_url="http://localhost")
    with client.websocket_connect(path, headers={"authorization": "Bearer key"}) as socket:
        assert socket.receive_text().endswith("socket")
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(path):
        pass


def test_a_kind_of_route_that_cannot_be_guarded_is_refused(app_of: Any) -> None:
    with pytest.raises(PluginError, match="a router cannot have routes of the type Host"):
        app_of("user", 'router.routes.append(Host("a.example", Router()))')


async def test_routes_of_nested_routers_are_known(app_of: Any) -> None:
    app = app_of("public")
    assert list(app.state.endpoints) == ["/nested/twice"]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.post("/nested/twice", json={"number": 4})).json() == {"twice": 8}
        foreign = await client.get("/nested/reset", headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403, "it changes something when it is read"
        document = app.openapi()
        assert document["components"]["schemas"]["Body"]["properties"]["number"]["default"] == 0
        assert "/nested/twice" in document["paths"]
