"""Haystack: a pipeline, a stream and an agent with a tool."""

from __future__ import annotations

import json
import sys
from typing import Any

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

FRANCE = ChatMessage.from_user("What is the capital of France?")
BOSTON = ChatMessage.from_user("What's the weather like in Boston today?")
pieces: list[str] = []


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def generator(**options: Any) -> OpenAIChatGenerator:
    """Return the component that sends requests to the server."""
    return OpenAIChatGenerator(
        api_key=Secret.from_token("None"),
        model="demo",
        api_base_url=f"{sys.argv[1]}/v1",
        generation_kwargs={"temperature": 0, "max_completion_tokens": 100},
        max_retries=0,
        **options,
    )


pipeline = Pipeline()
question = [ChatMessage.from_user("What is the capital of {{country}}?")]
pipeline.add_component("prompt", ChatPromptBuilder(template=question, required_variables=["country"]))
pipeline.add_component("llm", generator())
pipeline.connect("prompt.prompt", "llm.messages")
reply = pipeline.run({"prompt": {"country": "France"}})["llm"]["replies"][0]
generator(streaming_callback=lambda chunk: pieces.append(chunk.content)).run([FRANCE])
agent = Agent(
    chat_generator=generator(tools_strict=True), tools=[create_tool_from_function(get_weather)], max_agent_steps=3
)
messages = agent.run(messages=[BOSTON])["messages"]
print(
    json.dumps(
        {
            "text": reply.text,
            "reason": reply.meta["finish_reason"],
            "usage": reply.meta["usage"]["total_tokens"],
            "pieces": pieces,
            "roles": [message.role.value for message in messages],
            "results": [message.tool_call_result.result for message in messages if message.tool_call_result],
        }
    )
)
