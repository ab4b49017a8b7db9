"""Definitions of tools for the tests of tool calls."""

from __future__ import annotations

import json
from typing import Any

ASK = "What's the weather like in Boston today?"
FLAT_WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city to find the weather for, e.g. 'Boston'"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
    },
}
FLAT_CLOCK: dict[str, Any] = {"type": "function", "name": "get_time"}
"""The definition of a tool in the format of ``/v1/responses``, which is flat."""


def nested(flat: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the definition of a tool in the format of chat completions, which is nested."""
    return {"type": "function", "function": {key: value for key, value in flat.items() if key != "type"} | more}


def check_weather(name: str, arguments: str) -> None:
    """Check that the arguments of a call of the weather tool match its schema."""
    assert name == FLAT_WEATHER["name"]
    parsed = json.loads(arguments)
    assert parsed.keys() == {"city", "unit"}
    assert isinstance(parsed["city"], str) and parsed["unit"] in ("celsius", "fahrenheit")
