"""Web pages of other origins cannot change anything through the route of any plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from sglang_plug import Plugins
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState

PLUGIN = """
    @hookimpl
    def register_routes():
        yield RouteSpec(name="extra", target=f"{__name__}:build")

    def build(engine):
        from fastapi import APIRouter
        router = APIRouter()
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            router.add_api_route("/change/{id}", lambda id: "changed", methods=[method])
        router.add_api_route("/both", lambda: "changed", methods=["GET", "POST"])
        router.add_api_route("/read", lambda: "read")
        return router
"""
PAGE = "https://chat.example"
CHANGES = [("POST", "/change/1"), ("PUT", "/change/1"), ("PATCH", "/change/1"), ("DELETE", "/change/1")]
CHANGES += [("POST", "/both"), ("GET", "/both"), ("HEAD", "/both")]
Ask = Callable[..., Any]


@pytest.fixture
async def client_of(text_engine: Any, discover: Any, plugin_file: Any) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that makes a client of an application with a plugin's routes: ``client_of(**options)``."""
    clients: list[httpx.AsyncClient] = []

    def make(**options: Any) -> httpx.AsyncClient:
        block = tuple(f"route:{name}" for name in Plugins.discover().names("route") if name != "health")
        plugins = discover(plugin_file("extra", PLUGIN), block=block)
        transport = httpx.ASGITransport(build_app(text_engine(**options), plugins, GateState()))
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://localhost:30000"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


FOREIGN: list[dict[str, str]] = [
    {"origin": PAGE},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost:5173"},
    {"origin": "http://localhost"},
    {"origin": "http://localhost:30000.evil.example"},
    {"origin": "http://evil@localhost:30000"},
    {"origin": "file://localhost:30000"},
    {"origin": PAGE, "sec-fetch-site": "cross-site"},
    {"origin": "http://localhost:30000", "sec-fetch-site": "cross-site"},
    {"origin": "chrome-extension://abc", "sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
]
OWN: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "same-origin"},
    {"origin": "http://localhost:30000"},
    {"origin": "http://localhost:30000", "sec-fetch-site": "same-origin"},
    {"origin": "http://127.0.0.1:30000", "host": "127.0.0.1:30000"},
    {"origin": "https://localhost", "host": "localhost"},
    {"origin": PAGE, "content-type": "application/json; charset=utf-8"},  # a browser asks first, and is refused
    {"origin": PAGE, "authorization": "Bearer key", "sec-fetch-site": "cross-site"},
    {"origin": "http://localhost", "host": "localhost:80"},
    {"origin": "http://[::1]:30000", "host": "[::1]:30000"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_other_pages_change_nothing(client_of: Ask, headers: dict[str, str]) -> None:
    client = client_of()
    for method, path in CHANGES:
        answer = await client.request(method, path, headers=headers)
        assert answer.status_code == 403, (method, path)
        assert "x-request-id" in answer.headers
        assert method == "HEAD" or "--allow-origins" in answer.json()["error"]["message"]
    assert (await client.get("/read", headers=headers)).status_code == 200


@pytest.mark.parametrize("headers", OWN, ids=str)
async def test_own_pages_and_other_programs_may_call_everything(client_of: Ask, headers: dict[str, str]) -> None:
    client = client_of()
    for method, path in [*CHANGES, ("GET", "/read")]:
        answer = await client.request(method, path, headers=headers)
        assert answer.status_code == 200, (method, path)


async def test_allowed_pages_may_call_everything(client_of: Ask) -> None:
    for origins in ((PAGE,), ("*",)):
        client = client_of(allow_origins=origins)
        answer = await client.post("/both", headers={"origin": PAGE, "sec-fetch-site": "cross-site"})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert (await client_of(allow_origins=(PAGE,)).post("/both", headers={"origin": f"{PAGE}.evil"})).status_code == 403


async def test_a_rebound_name_is_refused_on_loopback_by_every_route(client_of: Ask) -> None:
    headers = {"host": "evil.example:30000", "origin": "http://evil.example:30000", "sec-fetch-site": "same-origin"}
    client = client_of()
    for method, path in [*CHANGES, ("GET", "/read"), ("GET", "/health"), ("GET", "/nothing"), ("OPTIONS", "/read")]:
        for sent in (headers, {"host": headers["host"]}):
            answer = await client.request(method, path, headers=sent)
            assert answer.status_code == 421, (method, path)
    message = (await client.get("/read", headers=headers)).json()["error"]["message"]
    assert "--allowed-hosts evil.example" in message


async def test_a_rebound_name_changes_nothing_where_any_host_is_accepted(client_of: Ask) -> None:
    client = client_of(host="0.0.0.0")
    host = {"host": "evil.example:30000"}
    assert (await client.get("/read", headers=host)).status_code == 200
    assert (await client.post("/both", headers=host)).status_code == 200
    for headers in ({"origin": "http://evil.example:30000"}, {"sec-fetch-site": "same-origin"}):
        answer = await client.post("/both", headers={**host, **headers})
        assert answer.status_code == 403
        assert "--allowed-hosts" in answer.json()["error"]["message"]


async def test_an_allowed_host_serves_its_own_pages(client_of: Ask) -> None:
    for listening in ("127.0.0.1", "0.0.0.0"):
        client = client_of(host=listening, allowed_hosts=("llm.example",))
        headers = {"host": "llm.example", "origin": "https://llm.example", "sec-fetch-site": "same-origin"}
        assert (await client.post("/both", headers=headers)).status_code == 200
        assert (await client.get("/health", headers={"host": "10.0.0.7:30000"})).status_code == 200
        assert (await client.get("/health", headers={"host": "other.example"})).status_code == 421


async def test_a_malformed_host_is_refused(client_of: Ask) -> None:
    for host in ("a b", "a/health", "evil@localhost", ""):
        assert (await client_of().get("/health", headers={"host": host})).status_code == 400, host
