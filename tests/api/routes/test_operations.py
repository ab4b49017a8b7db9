"""Tests of routes for operators: health, information, models, metrics, cache, OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sglang_plug import Plugins
from sglang_plug_api.http.app import build_app
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.options.option_table import options
from sglang_plug_api.pooling.pooling import ONE_TOKEN
from sglang_plug_api.text.job import Job


@pytest.mark.parametrize("path", ["/health", "/ping", "/health_generate"])
def test_health(app: Any, path: str) -> None:
    response = app.get(path)
    assert (response.status_code, response.content) == (200, b"")
    assert app.is_whole()


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready", "/readyz", "/health_generate"])
def test_health_while_the_server_warms_up(app: Any, path: str) -> None:
    app.engine.server.state.warming_up = True
    try:
        response = app.get(path)
    finally:
        app.engine.server.state.warming_up = False
    assert response.status_code == 503
    assert "is warming up" in response.json()["error"]["message"]
    assert app.get(path).status_code == 200


async def test_health_while_requests_wait_for_an_update_of_the_weights(
    text_engine: Callable[..., Any], scripted: Any
) -> None:
    engine = text_engine(health_timeout=0.05, drain_timeout=240.0)
    transport = httpx.ASGITransport(build_app(engine, Plugins.discover(), GateState()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        scripted.pause.clear()
        running = asyncio.create_task(engine.complete(Job(tokens=(0,), sampling=ONE_TOKEN)))
        while not scripted.requests:
            await asyncio.sleep(0)
        updating = asyncio.create_task(engine.update_weights("org/other"))
        while engine.admission_gate.is_open:
            await asyncio.sleep(0)
        assert (await client.get("/health_generate")).status_code == 200
        scripted.dead = "it has ended"
        assert (await client.get("/health_generate")).status_code == 503
        scripted.dead = None
        scripted.pause.set()
        await asyncio.gather(running, updating)
        assert (await client.get("/health_generate")).status_code == 200
        assert len(scripted.requests) == 2


def test_models(app: Any) -> None:
    listed = app.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert app.get(f"/v1/models/{card['id']}").json() == card
    assert app.get("/v1/models/a/b").status_code == 404


def test_model_info_extends_the_old_keys(app: Any) -> None:
    old, new = app.get("/get_model_info").json(), app.get("/model_info").json()
    assert len(old) == 9
    assert old.items() < new.items()


def test_server_info_hides_keys(apps: Any) -> None:
    app = apps(admin_api_key="hidden-key")
    info = app.get("/server_info")
    assert "hidden-key" not in info.text
    assert info.json()["admin_api_key"] == "********"
    assert info.json()["plugins"] == app.get("/plugins").json() == app.engine.server.plugins


def test_server_info_names_the_options_as_the_command_line_does(app: Any) -> None:
    info = app.get("/server_info").json()
    assert {option.key for option in options()} <= info.keys()
    assert (info["attention_backend"], info["schedule_policy"]) == ("torch", "fair")
    assert info["tokenizer_path"] == app.get("/model_info").json()["tokenizer_path"]
    assert (info["is_embedding"], info["disable_radix_cache"]) == (False, False)


def test_metrics(app: Any) -> None:
    response = app.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "\nsglang:num_requests_total{" in response.text


def test_flush_cache(app: Any) -> None:
    app.answer("/generate", {"text": "something to remember"})
    for call in (app.get, app.post):
        response = call("/flush_cache")
        assert (response.status_code, response.text.startswith("Cache flushed.\nPlease check")) == (200, True)
    assert app.run(app.client.get("/server_info")).json()["slots"]["cached"] == 0


def test_document(app: Any) -> None:
    document = app.get("/openapi.json").json()
    assert document["info"]["title"] == "sglang-plug"
    assert "put" in document["paths"]["/generate"]
