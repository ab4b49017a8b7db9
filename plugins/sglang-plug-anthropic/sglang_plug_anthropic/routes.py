"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute

from sglang_plug import MediaPrompt
from sglang_plug_api.plugin import (
    Job,
    TextEngine,
    json_response,
    new_id,
    read_body,
    respond,
    takes,
)

from . import errors
from .answers import Answer
from .bodies import AnthropicBody, AnthropicCountBody

ID_HEADER = "request-id"


def build(engine: TextEngine) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["Anthropic"], route_class=AnthropicRoute)

    @takes(router, "/v1/messages", AnthropicBody, summary="A message")
    async def create(request: Request) -> Response:
        body = await read_body(request, AnthropicBody)
        prompt = await _prompt(engine, body)
        sampling = engine.defaults.complete(body.sampling(), len(prompt.tokens), None)
        job = Job(id=f"msg_{new_id()}", tokens=prompt.tokens, media=prompt.media, sampling=sampling)
        answer = Answer(engine, body, job, request.state.id)
        return await respond(request, body.stream, answer.events, answer.whole, done=False)

    @takes(router, "/v1/messages/count_tokens", AnthropicCountBody, summary="How many tokens a message would read")
    async def count_tokens(request: Request) -> Response:
        body = await read_body(request, AnthropicCountBody)
        return json_response({"input_tokens": len((await _prompt(engine, body)).tokens)})

    return router


class AnthropicRoute(APIRoute):
    """Answers every error, of the guard too, in Anthropic's envelope, and tells the request's id."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What is called for each request."""
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


async def _prompt(engine: TextEngine, body: AnthropicCountBody) -> MediaPrompt:
    """The conversation, with its images. Raises ``ApiError``."""
    engine.check_model(body.model)
    images = body.images()
    if images and not engine.sees:
        raise images[0].error("this model takes text only")
    tokens = await engine.encode_chat(
        body.conversation(), add_generation_prompt=not body.continues, continue_final_message=body.continues
    )
    return await engine.with_images(tokens, images)
