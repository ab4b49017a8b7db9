"""Agents of pydantic-ai: a tool, an output of a schema, and a stream, validated with the types of OpenAI's client."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

FRANCE = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=8)
    millions: int = Field(ge=0, le=99)


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def ask(model: Any) -> dict[str, Any]:
    """Run agents with a model, and report their outputs."""
    greedy: Any = {"temperature": 0, "max_tokens": 150}
    agent = Agent(model, instructions="Be brief.", model_settings=greedy)
    first = await agent.run(FRANCE)
    second = await agent.run("And of Japan?", message_history=first.all_messages())
    tooled = await Agent(model, tools=[get_weather], model_settings=greedy).run(
        "What's the weather like in Boston today?"
    )
    cities = [
        (await Agent(model, output_type=kind(City), model_settings=greedy).run("Tell me about Paris.")).output
        for kind in (NativeOutput, ToolOutput)
    ]
    pieces = []
    async with agent.run_stream(FRANCE) as stream:
        async for piece in stream.stream_text(delta=True, debounce_by=None):
            pieces.append(piece)
    scored: Any = {**greedy, "openai_logprobs": True, "openai_top_logprobs": 2}
    return {
        "text": first.output,
        "next": second.output,
        "parts": [part.part_kind for message in tooled.all_messages() for part in message.parts],
        "cities": [city.model_dump() for city in cities],
        "pieces": pieces,
        "scored": (await agent.run(FRANCE, model_settings=scored)).output,
    }


async def main() -> dict[str, Any]:
    """Report on agents with a model for chat completions and with one for responses."""
    provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="None")
    return {
        "chat": await ask(OpenAIChatModel("demo", provider=provider)),
        "responses": await ask(OpenAIResponsesModel("demo", provider=provider)),
    }


print(json.dumps(asyncio.run(main())))
