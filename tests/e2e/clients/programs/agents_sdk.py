"""OpenAI's Agents SDK with chat completions and with responses: a tool loop, streamed, and a handoff."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

WEATHER = "What's the weather like in Boston today?"
ONE_CALL = ModelSettings(temperature=0, max_tokens=100, tool_choice="required", parallel_tool_calls=False)


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def ask(model: Any) -> dict[str, Any]:
    """Run agents with a model, and report their outputs."""
    greedy = ModelSettings(temperature=0, max_tokens=60)
    plain = Agent(name="plain", instructions="Be brief.", model=model, model_settings=greedy)
    first = await Runner.run(plain, "What is the capital of France?")
    history: Any = [*first.to_input_list(), {"role": "user", "content": "And of Japan?"}]
    second = await Runner.run(plain, history)
    tooled = Agent(name="tooled", model=model, tools=[get_weather], model_settings=ONE_CALL)
    called = await Runner.run(tooled, WEATHER)
    stream, kinds = Runner.run_streamed(tooled, WEATHER), list[str]()
    async for event in stream.stream_events():
        kinds.append(event.data.type if event.type == "raw_response_event" else getattr(event, "name", event.type))
    clerk = Agent(name="clerk", handoffs=[plain], model=model, model_settings=ONE_CALL)
    handed = await Runner.run(clerk, "What is the capital of France?")
    scored = ModelSettings(temperature=0, max_tokens=20, top_logprobs=2)
    odds = await Runner.run(Agent(name="odds", model=model, model_settings=scored), "What is the capital of France?")
    return {
        "text": first.final_output,
        "next": second.final_output,
        "usage": first.raw_responses[0].usage.total_tokens,
        "items": [item.type for item in called.new_items],
        "output": [item.output for item in called.new_items if item.type == "tool_call_output_item"],
        "kinds": kinds,
        "agent": handed.last_agent.name,
        "scored": odds.final_output,
    }


async def main() -> dict[str, Any]:
    """Report on agents with a model for chat completions and with one for responses."""
    disable_tracing(disabled=True)
    async with AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="None", max_retries=0) as client:
        return {
            "chat": await ask(OpenAIChatCompletionsModel("demo", client)),
            "responses": await ask(OpenAIResponsesModel("demo", client)),
        }


print(json.dumps(asyncio.run(main())))
