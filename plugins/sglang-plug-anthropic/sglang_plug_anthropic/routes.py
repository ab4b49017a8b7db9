"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute

from sglang_plug_api.plugin import (
    ApiError,
    ChatOutput,
    ChatParsingOptions,
    Job,
    TextEngine,
    cancel_on_disconnect,
    json_response,
    new_id,
    prepare_chat,
    read_body,
    respond,
    takes,
)

from . import errors
from .answers import Answer
from .bodies import AnthropicBody, AnthropicCountBody

ID_HEADER = "request-id"
NO_THINKING = "'thinking' cannot be enabled: this server tells no thoughts apart, it runs without --reasoning-parser"


def build(engine: TextEngine) -> APIRouter:
    """Build the routes."""
    router = APIRouter(tags=["Anthropic"], route_class=AnthropicRoute)

    @takes(router, "/v1/messages", AnthropicBody, summary="A message")
    async def create(request: Request) -> Response:
        body = await read_body(request, AnthropicBody)
        with engine.preparing():
            prompt, parsing = await cancel_on_disconnect(request, _prompt(engine, body))
        job = replace(
            prompt,
            id=f"msg_{new_id()}",
            sampling=engine.defaults.complete(parsing.sampling(body.sampling()), len(prompt.tokens), None),
            adapter=engine.adapters.resolve(body.model),
        )
        answer = Answer(engine, body, job, ChatOutput(parsing), request.state.id)
        return await respond(request, body.stream, answer.events, answer.whole, done=False)

    @takes(router, "/v1/messages/count_tokens", AnthropicCountBody, summary="How many tokens a message would read")
    async def count_tokens(request: Request) -> Response:
        body = await read_body(request, AnthropicCountBody)
        prompt, _ = await cancel_on_disconnect(request, _prompt(engine, body))
        return json_response({"input_tokens": len(prompt.tokens)})

    return router


class AnthropicRoute(APIRoute):
    """Route that returns every error, including the guard's, in Anthropic's envelope with the request's id."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def handle_in_dialect(request: Request) -> Response:
            request.state.id = f"req_{new_id()}"
            try:
                answer = await handle(request)
            except HTTPException:
                raise
            except Exception as error:
                answer = errors.response(error, request.state.id)
            answer.headers[ID_HEADER] = request.state.id
            return answer

        return handle_in_dialect


async def _prompt(engine: TextEngine, body: AnthropicCountBody) -> tuple[Job, ChatParsingOptions]:
    """Return the conversation with its tools and images, and how outputs are read. Raises ``ApiError``."""
    engine.check_model(body.model)
    if (body.model_extra or {}).get("thread"):
        raise errors.UnsupportedThreadError
    if body.thinking is not None and body.thinking.type == "enabled" and engine.parsers.reasoning is None:
        raise ApiError(NO_THINKING, param="thinking")
    return await prepare_chat(engine, body.chat())
