"""Further routes with planted faults; a plugin for ``--plugin``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse

from sglang_plug import RouteSpec, hookimpl
from sglang_plug_api.plugin import ApiError, Job, TextEngine, new_id

engines: dict[str, TextEngine] = {}
slots = asyncio.Semaphore(2)
counts: dict[str, int] = {}
readers: set[asyncio.Task[None]] = set()


async def checked(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(f"no JSON: {type(error).__name__}") from None
    if not isinstance(body, dict) or not isinstance(body.get("text"), str) or not body["text"]:
        raise ApiError("text is missing")
    return body


def refuse(status: int, message: str) -> Response:
    """Return an error in FastAPI's format instead of OpenAI's."""
    return JSONResponse({"detail": message}, status)


async def other_error_format(request: Request) -> Response:
    try:
        return JSONResponse({"text": (await checked(request))["text"]})
    except ApiError as error:
        return refuse(422, str(error))


async def text_errors(request: Request) -> Response:
    try:
        return JSONResponse({"text": (await checked(request))["text"]})
    except ApiError as error:
        return PlainTextResponse(str(error), 400)


async def page_errors(request: Request) -> Response:
    try:
        return JSONResponse({"text": (await checked(request))["text"]})
    except ApiError as error:
        return HTMLResponse(f"<h1>{error}</h1>", 400)


async def nameless_errors(request: Request) -> Response:
    try:
        return JSONResponse({"text": (await checked(request))["text"]})
    except ApiError:
        raise ApiError("") from None


async def errors_with_status_200(request: Request) -> Response:
    try:
        return JSONResponse({"text": (await checked(request))["text"]})
    except ApiError as error:
        return JSONResponse({"error": {"message": str(error)}})


async def not_a_number(request: Request) -> Response:
    await checked(request)
    return Response(json.dumps({"score": float("nan")}), media_type="application/json")


async def echoes_surrogates(request: Request) -> Response:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ApiError("no JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("text"), str) or not body["text"]:
        raise ApiError("text is missing")
    return JSONResponse({"text": body["text"]})


async def deep_bodies(request: Request) -> Response:
    try:
        body = json.loads(await request.body())
    except ValueError:
        raise ApiError("no JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("text"), str) or not body["text"]:
        raise ApiError("text is missing")
    return JSONResponse({"length": len(body["text"])})


async def keeps_the_lock(request: Request) -> Response:
    """Keep a semaphore acquired after an error."""
    await slots.acquire()
    body = await checked(request)
    slots.release()
    return JSONResponse({"text": body["text"]})


async def blocks_in_a_stream(request: Request) -> Response:
    await checked(request)

    async def events() -> AsyncGenerator[str, None]:
        yield "data: {}\n\n"
        time.sleep(0.7)
        yield "data: {}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def quoted_events(request: Request) -> Response:
    body = await checked(request)
    return StreamingResponse(iter([f"data: {body!r}\n\n", "data: [DONE]\n\n"]), media_type="text/event-stream")


async def broken_lines(request: Request) -> Response:
    """Send an event whose data contains a line break."""
    await checked(request)
    return StreamingResponse(iter(["data: one\ntwo\n\n"]), media_type="text/event-stream")


async def long_job(body: dict[str, Any]) -> Job:
    count = body.get("max_tokens")
    if not isinstance(count, int) or not 0 < count < 1000:
        raise ApiError("max_tokens is missing")
    engine = engines["engine"]
    tokens = await engine.encode(body["text"])
    fields = {"ignore_eos": True, "max_new_tokens": count, "temperature": 0.0}
    return Job(id=new_id(), tokens=tokens, sampling=engine.defaults.complete(fields, len(tokens), None))


async def generates_on(request: Request) -> Response:
    """Generate to the end even if the client has disconnected."""
    output = await engines["engine"].complete(await long_job(await checked(request)))
    return JSONResponse({"text": output.text})


async def streams_on(request: Request) -> Response:
    """Stream from a task that continues after the client has disconnected."""
    job = await long_job(await checked(request))
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    async def read() -> None:
        async for output in engines["engine"].stream(job):
            queue.put_nowait(output.text)
        queue.put_nowait(None)

    task = asyncio.create_task(read())
    readers.add(task)
    task.add_done_callback(readers.discard)

    async def events() -> AsyncGenerator[str, None]:
        while (text := await queue.get()) is not None:
            yield f"data: {json.dumps(text)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def counts_calls(request: Request) -> Response:
    """Count calls, and fail after six of them."""
    body = await checked(request)
    counts["calls"] = counts.get("calls", 0) + 1
    if counts["calls"] > 6:
        raise ApiError("too many requests", 429)
    return JSONResponse({"text": body["text"]})


async def created(request: Request) -> Response:
    """Answer JSON with the content type of an event stream."""
    body = await checked(request)
    return JSONResponse({"text": body["text"]}, media_type="text/event-stream")


async def wrong_length(request: Request) -> Response:
    body = await checked(request)
    answer = json.dumps({"text": body["text"]}).encode()
    return Response(answer, media_type="application/json", headers={"content-length": str(len(answer) + 5)})


async def shows_the_trace(request: Request) -> Response:
    """Send a traceback to the client."""
    import traceback

    try:
        body = json.loads(await request.body())
        return JSONResponse({"text": body["text"].lower().encode().decode()})
    except Exception:
        return JSONResponse({"error": {"message": traceback.format_exc()}}, 400)


HANDLERS: dict[str, Callable[[Request], Any]] = {
    handler.__name__.replace("_", "-"): handler
    for handler in (
        other_error_format,
        text_errors,
        page_errors,
        nameless_errors,
        errors_with_status_200,
        not_a_number,
        echoes_surrogates,
        deep_bodies,
        keeps_the_lock,
        blocks_in_a_stream,
        quoted_events,
        broken_lines,
        generates_on,
        streams_on,
        counts_calls,
        created,
        wrong_length,
        shows_the_trace,
    )
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
    engines["engine"] = engine
    router = APIRouter()
    router.add_api_route(f"/{name}", HANDLERS[name], methods=["POST"], response_model=None)
    return router
