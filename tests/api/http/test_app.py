"""Tests of building the application: routes of plugins, their precedence, errors, the OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from sglang_plug import ConfigError, EngineError, Plugins, RequestError
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState

ROUTES = """
    @hookimpl
    def register_routes():
        yield RouteSpec(name="extra", target=f"{__name__}:build", auth="AUTH", tasks=frozenset(TASKS))

    def build(engine):
        from fastapi import APIRouter
        router = APIRouter()
        router.add_api_route("PATH", lambda number=0: {"model": engine.model_name, "number": number})
        router.add_api_route("/number", number)
        router.add_api_route("/fails", fails)
        return RETURNED

    def number(count: int):
        return count

    def fails():
        raise engine_error
"""
BUILT_IN = Plugins.discover().names("route")


@pytest.fixture
async def client_of(text_engine: Any, discover: Any, plugin_file: Any) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that makes a client of an app with some built-in routes and one route of a plugin."""
    clients: list[httpx.AsyncClient] = []

    def make(*routes: str, path: str = "/extra", auth: str = "user", tasks: Any = (), **options: Any) -> Any:
        source = ROUTES.replace("PATH", path).replace("AUTH", auth).replace("TASKS", repr(set(tasks) or ()))
        file = plugin_file("extra", source.replace("RETURNED", options.pop("returned", "router")))
        plugins = discover(file, block=tuple(f"route:{name}" for name in BUILT_IN if name not in routes))
        app = build_app(text_engine(**options), plugins, GateState())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://localhost"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


async def test_routes_of_plugins_are_served_with_the_engine(client_of: Any) -> None:
    client = client_of("health")
    assert (await client.get("/extra")).json() == {"model": "org/letters", "number": 0}
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/metrics")).status_code == 404


async def test_keys_are_asked_for_by_the_route_and_not_by_its_name(client_of: Any) -> None:
    for auth, status in (("public", 200), ("user", 401), ("admin", 401)):
        client = client_of("health", path="/health/extra", auth=auth, api_keys=("key",))
        assert (await client.get("/health/extra")).status_code == status, auth
        assert (await client.get("/health")).status_code == 200
        answer = await client.get("/health/extra", headers={"authorization": "Bearer key"})
        assert answer.status_code == 200


async def test_routes_of_other_tasks_say_what_the_model_can_do(client_of: Any) -> None:
    refusal = await client_of(tasks={"embed"}).get("/extra")
    assert refusal.status_code == 400
    assert refusal.json()["error"]["message"] == "this model does not support the task embed; its tasks: generate"
    assert (await client_of(tasks={"embed"}, auth="admin", api_keys=("k",)).get("/extra")).status_code == 401
    assert (await client_of(tasks={"embed", "generate"}).get("/extra")).status_code == 200


@pytest.mark.parametrize(
    ("path", "built_in"), [("/v1/models", "models"), ("/v1/models/{other:path}", "models"), ("/health", "health")]
)
def test_two_claims_of_one_route_name_both(client_of: Any, path: str, built_in: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client_of(built_in, path=path)
    message = str(caught.value)
    assert f"route {built_in!r}" in message and "route 'extra'" in message
    assert "--block-plugin route:" in message


async def test_the_same_path_with_another_method_is_free(client_of: Any) -> None:
    client = client_of("generate", path="/generate")
    assert (await client.get("/generate")).json() == {"model": "org/letters", "number": 0}
    answer = await client.post("/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 3}})
    assert answer.json()["text"] == "Hel"


async def test_a_route_for_this_task_comes_before_one_of_another_task(client_of: Any) -> None:
    client = client_of("health", path="/health", tasks={"embed"})
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/number?count=1")).status_code == 400


def test_what_build_returns_must_be_a_router(client_of: Any) -> None:
    with pytest.raises(ConfigError, match="route 'extra' from .*returned dict instead of an APIRouter or RouteGroup"):
        client_of(returned="{}")


async def test_framework_errors_have_our_shape(client_of: Any) -> None:
    client = client_of("health", "generate")
    answers = [
        (await client.get("/none"), 404, "there is no route '/none'"),
        (
            await client.post("/v1/messages"),
            404,
            "the plugin sglang-plug-anthropic adds it: pip install 'sglang-plug[anthropic]', or pip install "
            "./plugins/sglang-plug-anthropic from a checkout",
        ),
        (await client.post("/health"), 405, "POST '/health'"),
        (await client.get("/number"), 400, "count"),
        (await client.get("/number?count=x"), 400, "count"),
    ]
    for answer, status, message in answers:
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]
        assert answer.json()["message"] == answer.json()["error"]["message"]
    assert answers[2][0].headers["allow"] == "GET"
    assert answers[3][0].json()["param"] == "count"


async def test_a_long_path_is_not_repeated_in_full(client_of: Any) -> None:
    assert len((await client_of().get("/" + "x" * 5000)).text) < 1000


async def test_an_unexpected_error_is_logged_and_hidden(client_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = client_of()
    for headers in ({}, {"X-Request-Id": "caller/7"}):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            answer = await client.get("/fails", headers=headers)  # NameError
        assert answer.status_code == 500
        assert "engine_error" not in answer.text
        id = headers.get("X-Request-Id", answer.headers["x-request-id"])
        assert answer.headers.get_list("x-request-id") == [id]
        assert f"GET '/fails' failed, request {id}" in caplog.text and "NameError" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"), [(RequestError("no room", 503), 503), (RequestError("bad"), 400), (EngineError("gone"), 503)]
)
async def test_errors_of_the_engine_are_answers(client_of: Any, scripted: Any, error: Exception, status: int) -> None:
    scripted.error = error
    answer = await client_of("generate").post("/generate", json={"text": "x"})
    assert answer.status_code == status
    assert str(error) in answer.json()["error"]["message"]


async def test_the_document_knows_bodies_that_routes_read_themselves(client_of: Any) -> None:
    document = (await client_of("docs", "chat", "generate").get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/generate", "/extra"} <= document["paths"].keys()
    schemas = document["components"]["schemas"]
    assert {"ChatBody", "GenerateBody", "Message", "SamplingBody"} <= schemas.keys()
    assert "CompletionBody" not in schemas
    reference = document["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/GenerateBody"
    calls = [call for path in document["paths"].values() for call in path.values()]
    assert len({call["operationId"] for call in calls}) == len(calls)
    assert document["paths"]["/generate"]["put"]["operationId"] == "put_generate"


async def test_bodies_over_the_limit(client_of: Any) -> None:
    client = client_of("generate", max_request_bytes=50)
    assert (await client.post("/generate", json={"text": "x"})).status_code == 200
    answer = await client.post("/generate", json={"text": "x" * 100})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "PayloadTooLargeError")
