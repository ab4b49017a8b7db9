"""LlamaIndex's client for OpenAI-compatible servers: text, streams, tools, an agent, and an object of a schema."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

FRANCE = [ChatMessage(role="user", content="What is the capital of France?")]
BOSTON = "What's the weather like in Boston today?"


class City(BaseModel):
    """A city, as an answer of a schema."""

    name: str = Field(max_length=8)
    country: str = Field(max_length=8)


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


llm = OpenAILike(
    model="demo",
    api_base=f"{sys.argv[1]}/v1",
    api_key="None",
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=4096,
    max_tokens=100,
    temperature=0,
    max_retries=0,
    strict=True,
)
weather = FunctionTool.from_defaults(get_weather)


async def asynchronously() -> dict[str, Any]:
    """Report on the calls that need an event loop."""
    answer = await FunctionAgent(tools=[weather], llm=llm).run(BOSTON)
    return {
        "async": (await llm.achat(FRANCE)).message.content,
        "agent": [call.tool_output.content for call in answer.tool_calls],
    }


answer = llm.chat(FRANCE)
forced = llm.chat_with_tools([weather], BOSTON, tool_required=True)
print(
    json.dumps(
        {
            "text": answer.message.content,
            "usage": answer.raw.usage.total_tokens,
            "stream": [piece.delta for piece in llm.stream_chat(FRANCE)],
            "calls": [call.tool_name for call in llm.get_tool_calls_from_response(forced)],
            "object": llm.as_structured_llm(City).complete("Paris").raw.model_dump(),
            **asyncio.run(asynchronously()),
        }
    )
)
