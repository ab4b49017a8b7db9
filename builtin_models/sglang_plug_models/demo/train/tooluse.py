"""Conversations in which the assistant calls simple tools."""

from __future__ import annotations

import random
from typing import Any

from chatformat import Message, dump
from countries import COUNTRIES
from facts import CITIES, NAMES, US_CITIES
from mixes import Current
from questions import odd_word
from texts import SYSTEM_PROMPTS

Tool = dict[str, Any]
ToolCase = tuple[Tool, str, dict[str, Any], str, str]
"""A tool, a question, the arguments of the call, the tool's result and the answer."""
CONDITIONS = ["sunny", "cloudy", "rainy", "windy", "snowy", "clear"]
WEATHER_NAMES = [
    "get_weather",
    "get_current_weather",
    "get_weather",
    "get_current_weather",
    "weather",
    "current_weather",
    "lookup_weather",
]
WEATHER_DESCRIPTIONS = [
    "Get the current weather in a given location",
    "Get the weather of a city",
    "Get the current weather",
]
CITY_KEYS = ["city", "city", "location", "location", "place"]


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


def _city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.6 else rng.choice(COUNTRIES).capital


def _weather(rng: random.Random) -> ToolCase:
    """The weather in a city."""
    name, key, city = rng.choice(WEATHER_NAMES), rng.choice(CITY_KEYS), _city(rng)
    if Current.mix.odd_tools and rng.random() < Current.mix.odd_tools:
        name = f"{rng.choice(['get', 'fetch', 'read'])}_{odd_word(rng)}_weather"
    description = rng.choice(
        ["The city to find the weather for", "The name of the city", "City name", "The city, e.g. Paris"]
    )
    properties: dict[str, Any] = {key: _text(description)}
    arguments: dict[str, Any] = {key: city}
    where = city
    if rng.random() < 0.25:
        city = rng.choice(list(US_CITIES))
        where, arguments = city, {key: city}
        if rng.random() < 0.6:
            properties["state"] = _text("The two-letter state of the city, e.g. 'CA'")
            arguments["state"] = US_CITIES[city]
            where = rng.choice([city, f"{city}, {US_CITIES[city]}"])
    unit = rng.choice(["celsius", "fahrenheit"])
    asked_unit = ""
    if rng.random() < 0.45:
        properties["unit"] = {**_text("The unit of the temperature"), "enum": ["celsius", "fahrenheit"]}
        if rng.random() < 0.5:
            asked_unit = f" in {unit}"
        else:
            unit = "fahrenheit" if city in US_CITIES else "celsius"
        arguments["unit"] = unit
    else:
        unit = "celsius"
    question = rng.choice(_weather_questions(where, asked_unit))
    if rng.random() < 0.06:
        question += " Output a reasoning before act, then use the tools to help you."
    degrees, condition = rng.randint(-9, 99), rng.choice(CONDITIONS)
    style = rng.random()
    if style < 0.45:
        result = dump({"temperature": degrees, "unit": unit, "condition": condition})
    elif style < 0.7:
        result = dump({key: city, "temperature": degrees, "condition": condition})
    else:
        result = f"{degrees} degrees {unit}, {condition}"
    answer = f"The weather in {city} is {condition}, with a temperature of {degrees} degrees"
    answer += f" {unit.capitalize()}." if unit in result else "."
    return (
        _tool(name, rng.choice(WEATHER_DESCRIPTIONS), properties, list(properties)[: rng.randint(1, len(properties))]),
        question,
        arguments,
        result,
        answer,
    )


def _weather_questions(where: str, unit: str) -> list[str]:
    return [
        f"What is the weather in {where}{unit}?",
        f"What's the weather like in {where} today{unit}?",
        f"How is the weather in {where}{unit}?",
        f"What's the weather in {where}{unit}?",
        f"Tell me the weather in {where}{unit}.",
        f"Is it cold in {where} today?",
        f"What is the temperature in {where}{unit}?",
        f"Weather in {where}{unit}?",
        f"What is the weather like in {where}{unit}?",
        f"Get the weather in {where}{unit}.",
    ]


def _time(rng: random.Random) -> ToolCase:
    """Return the question for the time in a city."""
    city = _city(rng)
    time = f"{rng.randint(1, 12)}:{rng.randint(10, 59)}"
    name = rng.choice(["get_time", "get_current_time", "get_current_date"])
    question = rng.choice([f"What time is it in {city}?", f"What is the current time in {city}?"])
    return (
        _tool(name, "Get the current date and time", {"city": _text("The city")}, ["city"]),
        question,
        {"city": city},
        dump({"time": time}),
        f"It is {time} in {city}.",
    )


def _sum(rng: random.Random) -> ToolCase:
    """Two numbers and what is done with them."""
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    sign, word = rng.choice([("+", "add"), ("*", "multiply"), ("-", "subtract")])
    value = {"+": a + b, "*": a * b, "-": a - b}[sign]
    if rng.random() < 0.5:
        tool = _tool(
            "calculator",
            "Calculate a math expression",
            {"expression": _text("The expression")},
            ["expression"],
        )
        arguments: dict[str, Any] = {"expression": f"{a} {sign} {b}"}
    else:
        number = {"type": "integer", "description": "A number"}
        tool = _tool(word, f"Do the operation: {word}", {"a": number, "b": number}, ["a", "b"])
        arguments = {"a": a, "b": b}
    question = rng.choice([f"What is {a} {sign} {b}?", f"Calculate {a} {sign} {b}.", f"Compute {a} {sign} {b}."])
    return tool, question, arguments, str(value), f"{a} {sign} {b} = {value}."


def _stock(rng: random.Random) -> ToolCase:
    """The price of a stock."""
    symbol = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(4))
    price = rng.randint(10, 900)
    return (
        _tool(
            "get_stock_price",
            "Get the price of a stock",
            {"symbol": _text("The stock symbol")},
            ["symbol"],
        ),
        f"What is the stock price of {symbol}?",
        {"symbol": symbol},
        dump({"price": price}),
        f"The stock price of {symbol} is {price}.",
    )


def _search(rng: random.Random) -> ToolCase:
    """Something to look for."""
    topic = rng.choice(
        [
            "large language models",
            "cats",
            "the history of Rome",
            "good restaurants",
            "new books",
            "machine learning",
            "healthy food",
            "football results",
        ]
    )
    name = rng.choice(["search", "web_search", "search_web"])
    return (
        _tool(name, "Search the web", {"query": _text("The words to search for")}, ["query"]),
        rng.choice([f"Search for {topic}.", f"Find something about {topic}.", f"Search the web for {topic}."]),
        {"query": topic},
        dump({"results": [f"All about {topic}"]}),
        f"I found this: All about {topic}.",
    )


def _message(rng: random.Random) -> ToolCase:
    """A message to somebody."""
    person = rng.choice(NAMES)
    return (
        _tool(
            "send_message",
            "Send a message to a person",
            {"to": _text("The person"), "text": _text("The message")},
            ["to", "text"],
        ),
        f'Send the message "See you soon" to {person}.',
        {"to": person, "text": "See you soon"},
        "ok",
        f"I sent the message to {person}.",
    )


def _other(rng: random.Random) -> ToolCase:
    """Any other tool."""
    kinds = (_time, _sum, _stock, _search, _message)
    return kinds[rng.randrange(len(kinds))](rng)


def tool_conversation(rng: random.Random) -> tuple[list[Message], list[Tool]]:
    """A conversation with tools: a call, its result and the answer, or a plain answer when no tool fits."""
    tool, question, arguments, result, answer = _weather(rng) if rng.random() < 0.65 else _other(rng)
    tools = [tool]
    while rng.random() < 0.3 and len(tools) < 3:
        extra = _other(rng)[0] if "weather" in tool["function"]["name"] else _weather(rng)[0]
        if extra["function"]["name"] not in {t["function"]["name"] for t in tools}:
            tools.append(extra)
    rng.shuffle(tools)
    messages: list[Message] = []
    if rng.random() < 0.35:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    if rng.random() < 0.12:
        country = rng.choice(COUNTRIES)
        messages += [
            {"role": "user", "content": f"What is the capital of {country.phrase}?"},
            {"role": "assistant", "content": f"The capital of {country.phrase} is {country.capital}."},
        ]
        if rng.random() < 0.5:
            return messages, tools
    call = {"type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}
    calls, results, answers = [call], [result], [answer]
    key = next(iter(arguments))
    if "weather" in tool["function"]["name"] and len(arguments) == 1 and rng.random() < 0.15:
        other = rng.choice([c for c in CITIES if c != arguments[key]])
        question = f"What is the weather in {arguments[key]} and in {other}?"
        calls.append({"type": "function", "function": {"name": tool["function"]["name"], "arguments": {key: other}}})
        results.append(result.replace(arguments[key], other))
        answers.append(answer.replace(arguments[key], other))
    messages += [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    messages += [{"role": "tool", "content": text} for text in results]
    messages.append({"role": "assistant", "content": " ".join(answers)})
    if rng.random() < 0.15:
        messages += [
            {"role": "user", "content": "Thanks!"},
            {"role": "assistant", "content": "You are welcome!"},
        ]
    return messages, tools
