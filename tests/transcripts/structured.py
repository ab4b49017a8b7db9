"""Recorded requests for constrained outputs of every grammar backend, tool calls, and reasoning."""

from __future__ import annotations

import json
from typing import Any

from .exchanges import Talk
from .generation import CHAT, COMPLETIONS, FRANCE, GENERATE, SAMPLED

BACKENDS = ("xgrammar", "llguidance", "outlines", "nonsense")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<person>"],
        "tags": [{"begin": "<person>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</person>"}],
        "at_least_one": True,
    },
}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<p>", "schema": PERSON, "end": "</p>"}],
    "triggers": ["<p>"],
}
EBNF = 'root ::= "yes" | "no" | "may" rest\nrest ::= "be" [0-9]{1,3}'
BROKEN: dict[str, dict[str, Any]] = {
    "schema of a wrong type": {"json_schema": {"type": "nonsense"}},
    "schema that nothing satisfies": {"json_schema": {"type": "integer", "minimum": 5, "maximum": 4}},
    "schema with a keyword that is not enforced": {"json_schema": {"not": {"type": "string"}}},
    "schema that is no JSON": {"json_schema": "{"},
    "dangling reference": {"json_schema": {"$ref": "#/$defs/none"}},
    "regex that does not parse": {"regex": "(a"},
    "regex with a look-ahead": {"regex": "(?=a)b"},
    "EBNF that does not parse": {"ebnf": "root ::= "},
    "EBNF without root": {"ebnf": 'start ::= "a"'},
    "EBNF with an unknown rule": {"ebnf": "root ::= other"},
    "structural tag without a format": {"structural_tag": {"type": "structural_tag"}},
    "two constraints": {"regex": "a", "ebnf": EBNF},
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": PERSON},
    "schema as text": {"json_schema": json.dumps({"enum": [7, 14, "x"]})},
    "regex": {"regex": "[a-z]{3,8}( [0-9]+)?"},
    "ebnf": {"ebnf": EBNF},
    "structural tag": {"structural_tag": TAG},
    "older structural tag": {"structural_tag": OLD_TAG},
}
FORMATS: dict[str, dict[str, Any]] = {
    "text": {"response_format": {"type": "text"}},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
    "strict json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}
    },
    "structural_tag": {"response_format": TAG},
    "regex": {"regex": "(Paris|London), [A-Z][a-z]+"},
    "ebnf": {"ebnf": EBNF},
    "unknown": {"response_format": {"type": "nonsense"}},
    "json_schema without a schema": {"response_format": {"type": "json_schema"}},
    "bad schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "x"}}}},
    "two": {"response_format": {"type": "json_object"}, "regex": "a"},
}
WEATHER: dict[str, Any] = {
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "get_time"}}]
BOSTON: list[dict[str, Any]] = [{"role": "user", "content": "What's the weather like in Boston today?"}]
CHOICES: dict[str, Any] = {
    "none": "none",
    "auto": "auto",
    "required": "required",
    "named": {"type": "function", "function": {"name": "get_time"}},
    "named, with arguments": {"type": "function", "function": {"name": "get_current_weather"}},
    "allowed, auto": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
    },
    "allowed, required": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
    },
    "unknown function": {"type": "function", "function": {"name": "nonsense"}},
    "nonsense": "nonsense",
}


def ask_constraints(talk: Talk) -> None:
    """Ask for each kind of constraint with each backend, greedy and sampled, and for refused constraints."""
    for backend in BACKENDS:
        with talk.group(f"constraints of {backend}"):
            for name, constraint in CONSTRAINTS.items():
                params = {**constraint, "grammar_backend": backend, "max_new_tokens": 60}
                talk.both(name, GENERATE, {"text": "Anna: ", "sampling_params": {"temperature": 0, **params}})
                sampled = {"temperature": 1, "sampling_seed": 5, **params}
                body = {"text": "Anna: ", "sampling_params": sampled, "return_logprob": True}
                talk.post(f"{name}, sampled with log-probabilities", GENERATE, body)
            for name, constraint in BROKEN.items():
                params = {**constraint, "grammar_backend": backend, "max_new_tokens": 4, "temperature": 0}
                talk.post(name, GENERATE, {"text": "Anna: ", "sampling_params": params})
            for name, form in FORMATS.items():
                body = {"messages": FRANCE, "max_tokens": 50, "temperature": 0, "grammar_backend": backend, **form}
                talk.both(f"chat, {name}", CHAT, body)
    with talk.group("constraints"):
        for name, form in FORMATS.items():
            talk.both(f"completion, {name}", COMPLETIONS, {"prompt": "Say: ", "max_tokens": 40, **SAMPLED, **form})
        form = FORMATS["json_schema"]
        talk.both("two outputs", CHAT, {"messages": FRANCE, "max_tokens": 50, **SAMPLED, "n": 2, **form})
        talk.both("min_tokens", CHAT, {"messages": FRANCE, "max_tokens": 60, "min_tokens": 40, **SAMPLED, **form})


def ask_tools(talk: Talk) -> None:
    """Ask for tool calls with every choice and with calls in the conversation, and for parsing of outputs."""
    with talk.group("tools"):
        base = {"messages": BOSTON, "max_tokens": 100, "temperature": 0, "tools": TOOLS}
        for name, choice in CHOICES.items():
            talk.both(name, CHAT, {**base, "tool_choice": choice})
        talk.both("one tool", CHAT, {**base, "tools": TOOLS[:1]})
        talk.both("sampled, required", CHAT, {**base, **SAMPLED, "tools": TOOLS[:1], "tool_choice": "required"})
        talk.both("not parallel", CHAT, {**base, "tool_choice": "required", "parallel_tool_calls": False})
        strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
        talk.both("strict", CHAT, {**base, "tools": strict})
        talk.both("tools and a constraint", CHAT, {**base, **FORMATS["json_object"]})
        talk.both("a choice without tools", CHAT, {**base, "tools": None, "tool_choice": "required"})
        bad = [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}]
        talk.both("bad parameters", CHAT, {**base, "tools": bad, "tool_choice": "required"})
        call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
        turns = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
        ]
        talk.both("calls in the conversation", CHAT, {**base, "messages": [*BOSTON, *turns]})
    with talk.group("parsing"):
        texts = {
            "hermes": '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
            "qwen25": 'Well. <tool_call>\n{"name": "get_time", "arguments": {"a": 1}}\n</tool_call>',
            "llama3": '<|python_tag|>{"name": "get_time", "parameters": {}}',
            "mistral": '[TOOL_CALLS] [{"name": "get_time", "arguments": {}}]',
            "pythonic": "[get_time()]",
            "deepseekv3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "gpt-oss": "<|channel|>commentary to=functions.get_time<|message|>{}<|call|>",
            "nonsense": "text",
        }
        for parser, text in texts.items():
            body = {"text": text, "tools": TOOLS, "tool_call_parser": parser}
            talk.post(f"calls of {parser}", "/parse_function_call", body)
            talk.post(f"no calls of {parser}", "/parse_function_call", {**body, "text": "Hello."})
        talk.post("calls of the server's parser", "/parse_function_call", {"text": texts["hermes"], "tools": TOOLS})
        for reader in ("deepseek-r1", "qwen3", "gpt-oss", "nonsense", None):
            thought: dict[str, Any] = {"text": "<think>Hm.</think>Yes.", "reasoning_parser": reader}
            talk.post(f"reasoning of {reader}", "/separate_reasoning", thought)
