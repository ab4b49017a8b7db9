"""Routes with planted faults; a plugin for ``--plugin``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse

from sglang_plug import RouteSpec, hookimpl
from sglang_plug_api.plugin import ApiError, Job, TextEngine, new_id

last: dict[str, Any] = {}
calls: dict[str, int] = {}
tasks: list[Any] = []


async def checked(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(f"no JSON: {type(error).__name__}") from None
    if not isinstance(body, dict) or not isinstance(body.get("text"), str):
        raise ApiError("text is missing")
    return body


async def correct(request: Request) -> Response:
    body = await checked(request)
    await asyncio.sleep(0.6 if body["text"] == "one" else 0)
    return JSONResponse({"text": body["text"]})


async def parses_blindly(request: Request) -> Response:
    return JSONResponse({"text": json.loads(await request.body())["text"]})


async def reads_blindly(request: Request) -> Response:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ApiError("no JSON") from None
    return JSONResponse({"text": body["text"].upper()})


async def blocks(request: Request) -> Response:
    if (await checked(request))["text"] == "one":
        time.sleep(0.7)
    return JSONResponse({})


async def blocks_on_long_texts(request: Request) -> Response:
    if len((await checked(request))["text"]) >= 1000:
        time.sleep(0.7)
    return JSONResponse({})


async def shares_a_global(request: Request) -> Response:
    last["text"] = (await checked(request))["text"]
    await asyncio.sleep(0.02)
    return JSONResponse({"text": last["text"]})


async def no_json(request: Request) -> Response:
    body = await checked(request)
    return Response(f"{{'text': {body['text']!r}}}", media_type="application/json")


async def unfinished_events(request: Request) -> Response:
    await checked(request)
    return StreamingResponse(iter(["data: a\n\n", "data: b"]), media_type="text/event-stream")


async def events_without_data(request: Request) -> Response:
    await checked(request)
    return StreamingResponse(iter(['{"text": "a"}\n\n']), media_type="text/event-stream")


async def only_once(request: Request) -> Response:
    await checked(request)
    calls["only_once"] = calls.get("only_once", 0) + 1
    if calls["only_once"] > 1:
        raise ApiError("already answered", 409)
    return JSONResponse({})


async def forgets_fields(request: Request) -> Response:
    await checked(request)
    calls["forgets"] = calls.get("forgets", 0) + 1
    return JSONResponse({"text": "a"} if calls["forgets"] == 1 else {})


async def breaks_off(request: Request) -> Response:
    body = await checked(request)

    async def parts() -> Any:
        yield body["text"]
        raise RuntimeError("in the middle")

    return StreamingResponse(parts())


async def takes_anything(request: Request) -> Response:
    await request.body()
    return JSONResponse({"text": "ok"})


async def any_method(request: Request) -> Response:
    if request.method == "PUT":
        raise KeyError("method")
    return JSONResponse(await checked(request))


async def redirects(request: Request) -> Response:
    return RedirectResponse("/health")


async def leaks_work(request: Request) -> Response:
    body = await checked(request)
    engine = last["engine"]
    tokens = await engine.encode(body["text"])
    for _ in range(20):
        job = Job(id=new_id(), tokens=tokens, sampling=engine.defaults.complete({"ignore_eos": True}, 1, None))
        tasks.append(asyncio.ensure_future(engine.complete(job)))
    return JSONResponse({})


HANDLERS: dict[str, Callable[[Request], Any]] = {
    "correct": correct,
    "parses-blindly": parses_blindly,
    "reads-blindly": reads_blindly,
    "blocks": blocks,
    "blocks-on-long-texts": blocks_on_long_texts,
    "shares-a-global": shares_a_global,
    "no-json": no_json,
    "unfinished-events": unfinished_events,
    "events-without-data": events_without_data,
    "only-once": only_once,
    "forgets-fields": forgets_fields,
    "breaks-off": breaks_off,
    "takes-anything": takes_anything,
    "any-method": any_method,
    "redirects": redirects,
    "leaks-work": leaks_work,
}


@hookimpl
def register_routes() -> Iterator[RouteSpec]:
    for name in HANDLERS:
        yield RouteSpec(name=name, target=f"{__name__}:builders.{name.replace('-', '_')}")


class Builders:
    def __getattr__(self, name: str) -> Callable[[TextEngine], APIRouter]:
        return lambda engine: build(name.replace("_", "-"), engine)


builders = Builders()


def build(name: str, engine: TextEngine) -> APIRouter:
    router = APIRouter()
    last["engine"] = engine
    methods = ["POST", "PUT"] if name == "any-method" else ["POST"]
    router.add_api_route(f"/{name}", HANDLERS[name], methods=methods, response_model=None)
    return router
