"""``POST /parse_function_call`` and ``POST /separate_reasoning``: the parsers as a service."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug import CallArguments, CallStart, OutputParser, Reasoning, Text
from sglang_plug.parsers import Event, joined
from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.errors import ApiError, json_response
from sglang_plug_api.parsers import REASONING, TOOLS
from sglang_plug_api.protocol.tools import ParseCallsBody, SeparateReasoningBody
from sglang_plug_api.text import TextEngine

PIECE = 1 << 12
"""Characters that a parser reads at once."""


def build(engine: TextEngine) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["native"])
    parsers = engine.parsers

    @takes(router, "/parse_function_call", ParseCallsBody, summary="Tell calls of functions from text")
    async def parse_function_call(request: Request) -> Response:
        body = await read_body(request, ParseCallsBody)
        name = body.tool_call_parser
        parser = parsers.named(TOOLS, name, "tool_call_parser") if name else parsers.for_tools()
        events = await asyncio.to_thread(_events, parser, body.text)
        calls: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, CallStart):
                calls.append({"tool_index": event.index, "name": event.name, "parameters": ""})
            elif isinstance(event, CallArguments):
                calls[-1]["parameters"] += event.text
        return json_response({"normal_text": _text(events), "calls": calls})

    @takes(router, "/separate_reasoning", SeparateReasoningBody, summary="Tell reasoning from the answer")
    async def separate_reasoning(request: Request) -> Response:
        body = await read_body(request, SeparateReasoningBody)
        name = body.reasoning_parser
        parser = parsers.named(REASONING, name, "reasoning_parser") if name else parsers.reasoning
        if parser is None:
            raise ApiError("name a reasoning_parser; the server has no default one", param="reasoning_parser")
        events = await asyncio.to_thread(_events, parser, body.text)
        thoughts = "".join(event.text for event in events if isinstance(event, Reasoning))
        return json_response({"reasoning_text": thoughts, "text": _text(events)})

    return router


def _events(parser: type[OutputParser], text: str) -> list[Event]:
    """In pieces, as a model writes them: a parser that cuts off what it has read would copy all that is left."""
    reader = parser()
    pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
    return joined([event for piece in pieces for event in reader.feed(piece)] + reader.finish())


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))
