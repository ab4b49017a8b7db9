"""Tests of access with several API keys, and from web pages of other origins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sglang_plug import ConfigError
from sglang_plug_api.http.app import _cors

PAGE = "https://chat.example"


def preflight(app: Any, origin: str, path: str = "/v1/chat/completions") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return app.run(app.client.options(path, headers=headers))


def test_any_of_several_keys(apps: Callable[..., Any]) -> None:
    app = apps(api_key=("key-1", "key-2,key-3"))
    for key, status in {"key-1": 200, "key-2": 200, "key-3": 200, "key-2,key-3": 401, "": 401, "key-": 401}.items():
        answer = app.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status, key
        flushed = app.post("/flush_cache", headers={"authorization": f"Bearer {key}"})
        assert flushed.status_code == status, "without an admin key, every key is one"
    info = app.get("/server_info", headers={"authorization": "Bearer key-1"})
    assert info.json()["api_key"] == "********"
    assert "key-2" not in info.text and "key-3" not in info.text


def test_no_origin_is_allowed_unless_named(app: Any) -> None:
    assert preflight(app, PAGE).status_code == 405
    answer = app.get("/health", headers={"origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_named_origins(apps: Callable[..., Any]) -> None:
    app = apps(allow_origins=(PAGE, "http://localhost:5173"), api_key="key")
    response = preflight(app, PAGE)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in response.headers["access-control-allow-headers"]
    other = preflight(app, "https://elsewhere.example")
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers
    refused = app.get("/v1/models", headers={"origin": PAGE})
    assert refused.status_code == 401, "an allowed origin is no key"
    assert refused.headers["access-control-allow-origin"] == PAGE, "the page can read why"
    assert "access-control-allow-credentials" not in refused.headers


def test_every_origin(apps: Callable[..., Any]) -> None:
    app = apps(allow_origins="*")
    body = {"text": "Hi", "sampling_params": {"max_new_tokens": 1}}
    answer = app.post("/generate", body, headers={"origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize(
    "origin", ["chat.example", "https://chat.example/", "https://chat.example/path", "null", "*.x"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="--allow-origins: .* is not an origin"):
        _cors([origin])
