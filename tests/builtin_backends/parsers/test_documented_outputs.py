"""Outputs of models in the form in which public documentation shows them; each case names the document."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sglang_plug import CallStart, OutputParser
from sglang_plug_backends.parsers.deepseek import DeepSeekV31
from sglang_plug_backends.parsers.gemma import Gemma4
from sglang_plug_backends.parsers.kimi import KimiK2
from sglang_plug_backends.parsers.marked_json import Ernie45, Hermes, HunyuanA13B, InternLM, Nemotron
from sglang_plug_backends.parsers.pythonic import Lfm2
from sglang_plug_backends.parsers.thinking import HunyuanThinking, SeedThinking
from sglang_plug_backends.parsers.xml.formats import DeepSeekV32, Glm45, MiniMaxM2, Qwen3Coder

Read = Callable[..., list[Any]]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Documented:
    """An output of a document, and what it means."""

    parser: type[OutputParser]
    document: str
    output: str
    calls: tuple[Call, ...]
    text: str = ""
    """What stands before the calls."""


def searched(engine: str) -> Call:
    return "search_web", {"query_tag": ["technology", "events"], "query_list": [f'"{engine}" "latest" "release"']}


CASES = (
    Documented(
        Glm45,
        "How to Call Functions in GLM4.5: A Step-by-Step Guide",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n"
        "<arg_key>date</arg_key>\n<arg_value>2024-06-27</arg_value>\n</tool_call>\n"
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Shanghai</arg_value>\n"
        "<arg_key>date</arg_key>\n<arg_value>2024-06-27</arg_value>\n</tool_call>",
        tuple(("get_weather", {"city": city, "date": "2024-06-27"}) for city in ("Beijing", "Shanghai")),
    ),
    Documented(
        KimiK2,
        "Kimi-K2, Tool Calling (tool_call_guidance.md): format and id of a call",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Beijing"}<|tool_call_end|><|tool_calls_section_end|>',
        (("get_weather", {"city": "Beijing"}),),
    ),
    Documented(
        MiniMaxM2,
        "MiniMax-M2 Tool Calling Guide, Model Output Format",
        '<minimax:tool_call>\n<invoke name="search_web">\n'
        '<parameter name="query_tag">["technology", "events"]</parameter>\n'
        '<parameter name="query_list">["\\"OpenAI\\" \\"latest\\" \\"release\\""]</parameter>\n</invoke>\n'
        '<invoke name="search_web">\n<parameter name="query_tag">["technology", "events"]</parameter>\n'
        '<parameter name="query_list">["\\"Gemini\\" \\"latest\\" \\"release\\""]</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        (searched("OpenAI"), searched("Gemini")),
    ),
    Documented(
        MiniMaxM2,
        "MiniMax-M2 Tool Calling Guide, Parsing Tool Calls",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="location">San Francisco</parameter>\n'
        '<parameter name="unit">celsius</parameter>\n</invoke>\n</minimax:tool_call>',
        (("get_weather", {"location": "San Francisco", "unit": "celsius"}),),
    ),
    Documented(
        Qwen3Coder,
        "llama.cpp, Feature Request: Qwen3-Coder Tool Call Parser",
        "<tool_call>\n<function=search_products>\n<parameter=query>\nwaterproof running shoes\n</parameter>\n"
        "<parameter=sort_by>\nprice_low_to_high\n</parameter>\n</function>\n</tool_call>",
        (("search_products", {"query": "waterproof running shoes", "sort_by": "price_low_to_high"}),),
    ),
    Documented(
        DeepSeekV31,
        "SGLang, Support DeepSeek-V3.1 tool call: an output that a user recorded",
        "I'll check the weather in Shanghai for you.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_current_weather"
        '<｜tool▁sep｜>{"location": "Shanghai"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        (("get_current_weather", {"location": "Shanghai"}),),
        text="I'll check the weather in Shanghai for you.",
    ),
    Documented(
        DeepSeekV32,
        "llama.cpp, Deepseek V3.2 tool call parser: an output in the format of DeepSeek-V3.2's encoding_dsv32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n'
        '<｜DSML｜parameter name="query" string="true">search agent benchmark 2024</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="topn" string="false">10</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="source" string="true">web</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="get_datetime">\n'
        '<｜DSML｜parameter name="timezone" string="true">Asia/Shanghai</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        (
            ("search", {"query": "search agent benchmark 2024", "topn": 10, "source": "web"}),
            ("get_datetime", {"timezone": "Asia/Shanghai"}),
        ),
    ),
    Documented(
        HunyuanA13B,
        "Hunyuan-A13B, agent/README.md: the answer after the reasoning",
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Beijing"}}, '
        '{"name": "get_weather", "arguments": {"city": "Shanghai"}}]</tool_calls>',
        (("get_weather", {"city": "Beijing"}), ("get_weather", {"city": "Shanghai"})),
    ),
    Documented(
        InternLM,
        "InternLM2, Chat Format, Function Call",
        "Sure, I will search for the weather of Shanghai.<|action_start|><|plugin|>\n"
        '{"name": "get_current_weather", "parameters": {"location": "Shanghai"}}<|action_end|>',
        (("get_current_weather", {"location": "Shanghai"}),),
        text="Sure, I will search for the weather of Shanghai.",
    ),
    Documented(
        Ernie45,
        "FastDeploy, Tool_Calling: the call of the example, in the format of ERNIE-4.5-Thinking's template",
        '\n\n\n<tool_call>\n{"name": "get_weather", "arguments": {"location": "Beijing", "unit": "c"}}\n</tool_call>\n',
        (("get_weather", {"location": "Beijing", "unit": "c"}),),
    ),
    Documented(
        Hermes,
        "Granite 4.1, chat template: the example of a call",
        '<tool_call>\n{"name": "get_current_weather", "arguments": {"city": "Boston"}}\n</tool_call>',
        (("get_current_weather", {"city": "Boston"}),),
    ),
    Documented(
        Nemotron,
        "Nemotron VoiceChat, model card: the format, and the function of its example",
        '<TOOLCALL>[{"name": "generate_random_number", "arguments": {"min": 1, "max": 100}}]</TOOLCALL>\n',
        (("generate_random_number", {"min": 1, "max": 100}),),
    ),
    Documented(
        Gemma4,
        "Function calling with Gemma 4",
        '<|tool_call>call:get_current_temperature{location:<|"|>London<|"|>}<tool_call|>',
        (("get_current_temperature", {"location": "London"}),),
    ),
    Documented(
        Lfm2,
        "LFM2, Tool Use; LFM2-1.2B-Tool, model card",
        '<|tool_call_start|>[get_candidate_status(candidate_id="12345")]<|tool_call_end|>Checking the current status '
        "of candidate ID 12345.",
        (("get_candidate_status", {"candidate_id": "12345"}),),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.document)
def test_calls_of_a_document(read: Read, case: Documented) -> None:
    events = read(case.parser, case.output)
    calls = [event for event in events if isinstance(event, tuple)]
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == list(case.calls)
    before = events[: events.index(calls[0])]
    assert before == ([case.text] if case.text else [])


def test_the_id_of_kimis_document() -> None:
    (case,) = [case for case in CASES if case.parser is KimiK2]
    (start,) = [event for event in KimiK2().feed(case.output) if isinstance(event, CallStart)]
    assert start.id == "functions.get_weather:0"


def test_reasoning_of_hunyuans_document(read: Read) -> None:
    """Hunyuan-A13B, agent/README.md, shows reasoning and a call between the tags of the answer."""
    call = '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Shenzhen"}}]</tool_calls>'
    output = f"<think>\nThe city is Shenzhen.\n</think>\n<answer>\n{call}\n</answer>"
    assert read(HunyuanThinking, output) == [("thought", "The city is Shenzhen."), call]
    assert read(HunyuanA13B, call) == [(0, "get_weather", '{"city": "Shenzhen"}')]


def test_reasoning_of_seeds_document(read: Read) -> None:
    """Seed-OSS, README.md, shows how the model counts its budget inside the reasoning."""
    spent = "<seed:cot_budget_reflect>I have used 129 tokens, and there are 383 tokens remaining for use."
    thought = f"First, the power rule.\n{spent}</seed:cot_budget_reflect>\nThen the sum."
    output = f"<seed:think>\n{thought}\n</seed:think>\nThe result is 4."
    assert read(SeedThinking, output) == [("thought", thought), "The result is 4."]
