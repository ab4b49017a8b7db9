"""``POST /tokenize`` and ``POST /detokenize``: the model's tokenizer as a service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import cancel_on_disconnect
from sglang_plug_api.multimodal.images import images_of_messages
from sglang_plug_api.openai.chat_request import ChatRequest, prepare_chat
from sglang_plug_api.protocol.openai import Message
from sglang_plug_api.protocol.tokenize import DetokenizeBody, TokenizeBody
from sglang_plug_api.text.text_engine import TextEngine

MAX_DECODED_TOKENS = 1 << 20
"""Maximum number of tokens of one text. Decoding blocks all other Python code."""


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["native"])

    @takes(router, "/tokenize", TokenizeBody, summary="Tokens of a text, of several, or of a conversation")
    @takes(router, "/v1/tokenize", TokenizeBody, summary="As /tokenize")
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeBody)
        engine.check_model(body.model)
        return json_response(await cancel_on_disconnect(request, _tokenized(engine, body)))

    @takes(router, "/detokenize", DetokenizeBody, summary="Text of tokens")
    @takes(router, "/v1/detokenize", DetokenizeBody, summary="As /detokenize")
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody)
        engine.check_model(body.model)
        return json_response({"text": await asyncio.to_thread(_texts, engine, body)})

    return router


async def _tokenized(engine: TextEngine, body: TokenizeBody) -> dict[str, Any]:
    tokenizer, prompt = engine.tokenizer, body.prompt
    tokens: list[Any]
    if body.messages is not None:
        job, _ = await prepare_chat(engine, _chat_request(engine, body, body.messages))
        tokens = list(job.tokens)
    elif isinstance(prompt, list):
        tokens = await engine.encoder.encode_each(prompt, special=body.add_special_tokens)
    else:
        tokens = await engine.encode(prompt or "", special=body.add_special_tokens)
    result: dict[str, Any] = {
        "tokens": tokens,
        "count": _count(tokens, each=isinstance(prompt, list)),
        "max_model_len": engine.info["context_length"],
    }
    if body.return_token_strs:

        def pieces(value: Any) -> Any:
            return [pieces(part) for part in value] if isinstance(value, list) else tokenizer.piece(value)

        result["token_strs"] = await asyncio.to_thread(pieces, tokens)
    return result


def _chat_request(engine: TextEngine, body: TokenizeBody, messages: Sequence[Message]) -> ChatRequest:
    """Return the chat request that has the same prompt."""
    return ChatRequest(
        messages=[message.plain() for message in messages],
        images=images_of_messages(messages, supports_images=engine.supports_images),
        tools=body.tools,
        tool_choice=body.tool_choice,
        reasoning_effort=body.reasoning_effort,
        template_variables=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message,
    )


def _count(tokens: list[Any], *, each: bool) -> int | list[int]:
    return [len(item) for item in tokens] if each else len(tokens)


def _texts(engine: TextEngine, body: DetokenizeBody) -> str | list[str]:
    tokenizer = engine.tokenizer
    tokens: list[Any] = body.tokens if body.is_batch else [body.tokens]
    size, skip_special = tokenizer.vocab_size, body.skip_special_tokens
    texts = [tokenizer.decode(_checked(item, size), skip_special=skip_special) for item in tokens]
    return texts if body.is_batch else texts[0]


def _checked(tokens: Sequence[int], size: int) -> Sequence[int]:
    """Return ``tokens``. Raises ``ApiError`` if one is not in the vocabulary, or there are too many for one text."""
    if len(tokens) > MAX_DECODED_TOKENS:
        raise ApiError(f"a text of {len(tokens)} tokens; the maximum is {MAX_DECODED_TOKENS}", param="tokens")
    beyond = next((token for token in tokens if token >= size), None)
    if beyond is not None:
        raise ApiError(f"token id {beyond} is not in the vocabulary of {size} tokens", param="tokens")
    return tokens
