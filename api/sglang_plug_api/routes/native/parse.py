"""``POST /parse_function_call`` and ``POST /separate_reasoning``: the parsers as a service."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug import CallArguments, CallStart, OutputParser, Reasoning, Text
from sglang_plug.contracts.text.parsers import Event, joined
from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.protocol.tools import ParseCallsBody, SeparateReasoningBody
from sglang_plug_api.text.parsers import REASONING, TOOLS
from sglang_plug_api.text.text_engine import TextEngine

CHUNK_CHARACTERS = 1 << 12
"""Characters that are fed to a parser at once."""


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["native"])
    parsers = engine.parsers

    @takes(router, "/parse_function_call", ParseCallsBody, summary="Parse tool calls from text")
    async def parse_function_call(request: Request) -> Response:
        body = await read_body(request, ParseCallsBody)
        name = body.tool_call_parser
        parser = parsers.by_name(TOOLS, name, "tool_call_parser") if name else parsers.for_tools()
        functions = {tool.function.name: tool.function.parameters or {} for tool in body.tools or ()}
        events = await asyncio.to_thread(_events, parser.for_functions(functions), body.text)
        calls: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, CallStart):
                calls.append({"tool_index": event.index, "name": event.name, "parameters": ""})
            elif isinstance(event, CallArguments):
                calls[-1]["parameters"] += event.text
        return json_response({"normal_text": _text(events), "calls": calls})

    @takes(router, "/separate_reasoning", SeparateReasoningBody, summary="Separate reasoning from the answer")
    async def separate_reasoning(request: Request) -> Response:
        body = await read_body(request, SeparateReasoningBody)
        name = body.reasoning_parser
        parser = parsers.by_name(REASONING, name, "reasoning_parser") if name else parsers.reasoning
        if parser is None:
            raise ApiError("name a reasoning_parser; the server has no default one", param="reasoning_parser")
        events = await asyncio.to_thread(_events, parser(), body.text)
        thoughts = "".join(event.text for event in events if isinstance(event, Reasoning))
        return json_response({"reasoning_text": thoughts, "text": _text(events)})

    return router


def _events(reader: OutputParser, text: str) -> list[Event]:
    """Parse ``text`` in chunks, as a model writes it: a parser that cuts off parsed text would copy the long rest."""
    chunks = (text[start : start + CHUNK_CHARACTERS] for start in range(0, len(text), CHUNK_CHARACTERS))
    return joined([event for chunk in chunks for event in reader.feed(chunk)] + reader.finish())


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))
