"""Anthropic's SDK: a message, a stream, and its tool loop, streamed and not."""

from __future__ import annotations

import json
import sys
from typing import Any

from anthropic import Anthropic, beta_tool

QUESTION: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "extra_body": {"temperature": 0},
}
called: list[str] = []


@beta_tool
def get_current_weather(city: str, state: str = "") -> str:
    """Get the weather of a city."""
    called.append(city)
    return f"sunny in {city}"


client = Anthropic(base_url=sys.argv[1], api_key="None", max_retries=0)
message = client.messages.create(**QUESTION)
with client.messages.stream(**QUESTION) as stream:
    pieces = list(stream.text_stream)
tooled: dict[str, Any] = {
    **QUESTION,
    "messages": [{"role": "user", "content": "What's the weather like in Boston today?"}],
    "tools": [get_current_weather],
}
turns = [turn.stop_reason for turn in client.beta.messages.tool_runner(**tooled)]
streamed = []
for turn in client.beta.messages.tool_runner(**tooled, stream=True):
    for event in turn:
        if event.type == "message_start":
            started = event.message.usage.output_tokens
    streamed.append(turn.get_final_message().stop_reason)
print(
    json.dumps(
        {
            "text": message.content[0].text,
            "pieces": pieces,
            "turns": turns,
            "streamed": streamed,
            "called": called,
            "started": started,
        }
    )
)
