"""Tests of API keys: the routes that a key may call, and the errors without a valid key."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import openai
import pytest

from .servers import TIMEOUT

KEY, ADMIN = "sésame", "admin-key"
USER_ROUTES = [
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/generate"), ("GET", "/v1/models"),
    ("GET", "/v1/models/demo"), ("GET", "/model_info"), ("GET", "/get_model_info"), ("GET", "/server_info"),
    ("GET", "/get_server_info"), ("GET", "/plugins"), ("GET", "/openapi.json"), ("GET", "/count"),
]  # fmt: skip
GENERATE = {"text": "Hi", "sampling_params": {"max_new_tokens": 1}}


def call(server: Any, method: str, path: str, authorization: str | bytes | None = None, **more: Any) -> httpx.Response:
    value = authorization.encode() if isinstance(authorization, str) else authorization
    headers = {} if value is None else {b"authorization": value}
    return server.client.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)


def check_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    body = answer.json()
    assert body["error"]["type"] == "AuthenticationError"
    assert body["error"]["code"] == "invalid_api_key"
    assert body["error"]["message"].startswith("Unauthorized")
    assert KEY not in answer.text and ADMIN not in answer.text


@pytest.mark.parametrize(("method", "path"), USER_ROUTES)
def test_no_key_no_answer(guarded: Any, method: str, path: str) -> None:
    check_refused(call(guarded, method, path))


@pytest.mark.parametrize(
    "authorization",
    [
        "", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, f"Token {KEY}", f"Bearer {KEY}x", "Bearer sesame",
        f"Bearer {KEY[:-1]}", f"Bearer  {KEY} {KEY}", "Bearer None", b"Bearer \xff\xfe", b"Bearer s\xe9same\x80",
    ],
)  # fmt: skip
def test_wrong_keys_and_schemes(guarded: Any, authorization: str | bytes) -> None:
    check_refused(call(guarded, "POST", "/generate", authorization, json=GENERATE))


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer {ADMIN}", f"Bearer   {KEY} "])
def test_right_keys(guarded: Any, authorization: str) -> None:
    answer = call(guarded, "POST", "/generate", authorization.strip(), json=GENERATE)
    assert answer.status_code == 200, answer.text
    assert call(guarded, "GET", "/v1/models", authorization.strip()).json()["data"][0]["id"] == "demo"


def test_public_routes_need_no_key(guarded: Any) -> None:
    for path in ("/health", "/ping", "/health_generate"):
        assert call(guarded, "GET", path).status_code == 200, path


def test_administrative_routes_need_the_administrators_key(guarded: Any) -> None:
    for method in ("GET", "POST"):
        check_refused(call(guarded, method, "/flush_cache"))
        check_refused(call(guarded, method, "/flush_cache", f"Bearer {KEY}"))
        assert call(guarded, method, "/flush_cache", f"Bearer {ADMIN}").status_code == 200


def test_the_path_decides_and_no_header(guarded: Any) -> None:
    assert call(guarded, "GET", "/server_info", headers={"host": "localhost/health"}).status_code == 400
    for headers in ({"x-original-url": "/health"}, {"x-forwarded-prefix": "/health"}):
        check_refused(call(guarded, "GET", "/server_info", headers=headers))
    double = f"{guarded.url}//server_info"  # absolute, because a path with two slashes would be read as a host
    for path in ("/server_info?/health", "/v1/models/../models", "/health/../server_info", "/HEALTH", double):
        assert call(guarded, "GET", path).status_code in (401, 404), path


def test_a_refused_body_is_not_read(guarded: Any) -> None:
    check_refused(call(guarded, "POST", "/generate", content=b"{ not JSON"))


def test_no_key_is_shown(guarded: Any) -> None:
    for path in ("/server_info", "/plugins", "/openapi.json", "/model_info"):
        text = call(guarded, "GET", path, f"Bearer {KEY}").text
        assert KEY not in text and ADMIN not in text and "s\\u00e9same" not in text
    info = call(guarded, "GET", "/server_info", f"Bearer {KEY}").json()
    assert info["admin_api_key"] == "********"
    assert KEY not in guarded.log and ADMIN not in guarded.log


def test_openai_client_with_and_without_the_key(guarded: Any) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="None", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
    assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=ADMIN, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        hello: Any = [{"role": "user", "content": "Hi"}]
        assert client.chat.completions.create(model="demo", messages=hello).model == "demo"
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="gpt-4", messages=hello)
    assert "serves 'demo'" in unknown.value.message


async def test_many_probes_without_a_key_ask_the_model_a_few_times(server: Any) -> None:
    def requests_served() -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("sglang:num_requests_total{"))

    before, began = requests_served(), time.monotonic()
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        answers = await asyncio.gather(*(client.get("/health_generate") for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}
    assert requests_served() - before <= 2 + (time.monotonic() - began)  # at most one a second
