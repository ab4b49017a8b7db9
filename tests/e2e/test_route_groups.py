"""A plugin's own API: lines of JSON, and every error in its own format."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import httpx
import pytest

from .servers import NO_GRAMMARS, TIMEOUT, Launcher, ThreadServer, until

PLUGIN = """
from sglang_plug import RouteSpec, hookimpl


@hookimpl
def register_routes():
    yield RouteSpec(name="lines", target=f"{__name__}:build", tasks=frozenset({"generate"}))


def build(engine):
    from fastapi import APIRouter, Request, Response
    from sglang_plug_api.plugin import (
        Job, RequestBody, RouteGroup, json_response, read_body, respond, takes,
    )

    class Body(RequestBody):
        prompt: str
        count: int = 8
        stream: bool = True

    router = APIRouter()

    @takes(router, "/mine/generate", Body)
    async def generate(request: Request) -> Response:
        body = await read_body(request, Body)
        if body.prompt == "defect":
            raise RuntimeError("the secret")
        tokens = await engine.encode(body.prompt)
        params = {"temperature": 0, "max_new_tokens": body.count, "ignore_eos": True}
        sampling = engine.defaults.complete(params, len(tokens), None)
        job = Job(tokens=tokens, sampling=sampling)

        async def events():
            async for output in engine.stream(job):
                yield {"text": output.text, "done": output.ending is not None}

        async def whole():
            return {"text": (await engine.complete(job)).text, "done": True}

        return await respond(request, body.stream, events, whole, lines=True)

    def errors(error, request):
        cause = type(error.__cause__).__name__ if error.__cause__ is not None else None
        if request.url.path == "/mine/defect":
            raise ZeroDivisionError("a defect of the format")
        content = {"mine": error.message, "status": error.status, "cause": cause}
        return json_response(content, error.status, error.headers)

    return RouteGroup(router=router, errors=errors, prefix="/mine/")
"""
KEY = {"Authorization": "Bearer secret"}
PATH = "/mine/generate"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("plugin") / "lines.py"
    file.write_text(PLUGIN)
    return str(file)


@pytest.fixture(scope="module")
def server(module_launcher: Launcher, plugin: str) -> ThreadServer:
    flags = (
        "--plugin",
        plugin,
        "--api-key",
        "secret",
        "--max-request-bytes",
        "4096",
        "--allowed-hosts",
        "known.example",
    )
    return module_launcher.in_thread(*flags)


def test_a_stream_consists_of_lines(server: ThreadServer) -> None:
    body = {"prompt": "Once upon a time", "count": 8}
    streamed = server.post(PATH, body, headers=KEY)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = server.post(PATH, {**body, "stream": False}, headers=KEY).json()
    assert "".join(line["text"] for line in lines) == whole["text"] != ""


def test_a_reader_that_leaves_aborts_its_request(server: ThreadServer) -> None:
    with server.client.stream("POST", PATH, json={"prompt": "Once upon a time", "count": 3000}, headers=KEY) as stream:
        next(stream.iter_lines())
    until(lambda: server.get("/server_info", headers=KEY).json()["running"] == 0, "the request is aborted")


@pytest.mark.parametrize(
    ("request_of", "status", "cause"),
    [
        ({"json": {"prompt": 3}}, 400, None),
        ({"content": b"{", "headers": KEY}, 400, None),
        ({"json": {"prompt": "defect"}}, 500, "RuntimeError"),
        ({"json": {"prompt": "x"}, "headers": {"Authorization": "Bearer other"}}, 401, None),
        ({"json": {"prompt": "x" * 5000}}, 413, None),
        ({"json": {"prompt": "x"}, "headers": {**KEY, "Host": "other.example"}}, 421, None),
        ({"url": "/mine/none"}, 404, None),
        ({"method": "DELETE"}, 405, None),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_every_error_has_the_format_of_the_group(
    request_of: dict[str, Any], status: int, cause: str | None, server: ThreadServer
) -> None:
    answer = server.client.request(**{"method": "POST", "url": PATH, "headers": KEY, **request_of})
    assert (answer.status_code, answer.json()["status"]) == (status, status), answer.text
    assert "the secret" not in answer.text and answer.headers["x-request-id"]
    if cause is not None:
        assert answer.json()["cause"] == cause


def test_other_routes_keep_their_format(server: ThreadServer) -> None:
    answer = server.post("/v1/chat/completions", {"messages": []}, headers=KEY)
    assert answer.status_code == 400 and "mine" not in answer.json() and answer.json()["error"]["message"]


def test_a_format_that_fails_is_logged_and_replaced(server: ThreadServer) -> None:
    answer = server.post("/mine/defect", {}, headers=KEY)
    assert answer.status_code == 404 and answer.json()["error"]["message"].startswith("there is no route")
    assert "the error format of route 'lines' from " in server.log and "a defect of the format" in server.log


def test_the_end_of_the_engine_ends_a_stream_with_a_line(launch: Launcher, plugin: str) -> None:
    server = launch("--plugin", plugin, *NO_GRAMMARS)
    body = {"prompt": "Once upon a time", "count": 3000}
    with server.client.stream("POST", PATH, json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(server.engine_pid, signal.SIGKILL)
        last = json.loads([line for line in lines if line][-1])
    assert last["status"] == 503 and "signal 9" in last["mine"] and last["cause"] == "EngineError"


def test_a_shutdown_ends_a_stream_with_a_line(launch: Launcher, plugin: str) -> None:
    server = launch.in_thread("--plugin", plugin, "--drain-timeout", "0")
    with (
        httpx.Client(base_url=server.url, timeout=TIMEOUT) as client,
        client.stream("POST", PATH, json={"prompt": "Once upon a time", "count": 3000}) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        server.stop()
        last = json.loads([line for line in lines if line][-1])
    assert last["status"] == 503 and "shutting down" in last["mine"]
