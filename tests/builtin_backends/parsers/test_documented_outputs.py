"""Model outputs as public documentation shows them; each case names the document.

The cases of Step 3, Granite 3 and Seed-OSS are not recorded outputs. None was found in public for Step 3 and Granite 3:
their cases are written for these tests in the documented format. vLLM's tests have whole outputs of Seed-OSS; the cases
here have the same form, with other functions and texts.
"""

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
from sglang_plug_backends.parsers.marked_json import Ernie45, Granite, Hermes, HunyuanA13B, InternLM, Nemotron
from sglang_plug_backends.parsers.pythonic import Lfm2
from sglang_plug_backends.parsers.thinking import HunyuanThinking, SeedThinking
from sglang_plug_backends.parsers.xml.formats import DeepSeekV32, Glm45, MiniMaxM2, Qwen3Coder, SeedOss, Step3

Read = Callable[..., list[Any]]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Documented:
    """An output from a document, with the calls and the text that it contains."""

    parser: type[OutputParser]
    document: str
    output: str
    calls: tuple[Call, ...]
    text: str = ""
    """The text before the calls."""


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
        "SGLang, Support DeepSeek-V3.1 tool call: an excerpt, completed",
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
    Documented(
        Step3,
        "SGLang, tool_parser/step3.rs: a call in the format of its comment",
        '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="find_trains">\n'
        '<steptml:parameter name="origin">Köln</steptml:parameter>\n'
        '<steptml:parameter name="day">2026-05-04</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
        "<｜tool_calls_end｜>",
        (("find_trains", {"origin": "Köln", "day": "2026-05-04"}),),
    ),
    Documented(
        Step3,
        "SGLang, tool_parser/step3.rs: two calls after a text, in the format of its comment",
        "I look up both cities.\n<｜tool_calls_begin｜>\n"
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_time">\n'
        '<steptml:parameter name="zone">Asia/Tokyo</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_time">\n'
        '<steptml:parameter name="zone">Europe/Oslo</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
        "<｜tool_calls_end｜>",
        tuple(("get_time", {"zone": zone}) for zone in ("Asia/Tokyo", "Europe/Oslo")),
        text="I look up both cities.",
    ),
    Documented(
        SeedOss,
        "vLLM, test_seed_oss_tool_parser.py: a call in the form of its outputs",
        "<seed:tool_call>\n<function=find_trains>\n<parameter=origin>Köln, Germany</parameter>\n"
        "<parameter=class>second</parameter>\n</function>\n</seed:tool_call>",
        (("find_trains", {"origin": "Köln, Germany", "class": "second"}),),
    ),
    Documented(
        Granite,
        "Granite 3, chat template: the token 'followed by a JSON list of tools used'",
        '<|tool_call|>[{"name": "get_stock_price", "arguments": {"ticker": "IBM", "date": "2026-05-04"}}, '
        '{"name": "get_time", "arguments": {"zone": "Europe/Oslo"}}]',
        (("get_stock_price", {"ticker": "IBM", "date": "2026-05-04"}), ("get_time", {"zone": "Europe/Oslo"})),
    ),
    Documented(
        Granite,
        "vllm-mlx, Granite tool call parser: the tag instead of the token, as its comment says",
        '<tool_call>[{"name": "get_time", "arguments": {"zone": "Europe/Oslo"}}]',
        (("get_time", {"zone": "Europe/Oslo"}),),
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


def test_a_call_that_seed_quotes_in_its_reasoning(read: Read) -> None:
    """The output of vLLM's test_seed_oss_tool_parser.py quotes a call in its reasoning, which then continues."""
    call = (
        "<seed:tool_call>\n<function=get_time>\n<parameter=zone>Asia/Tokyo</parameter>\n</function>\n</seed:tool_call>"
    )
    thought = f"The format is {call}. Is the zone known?\n"
    spent = "<seed:cot_budget_reflect>I have used 130 tokens, and there are 382 tokens remaining for use."
    output = f"<seed:think>{thought}{spent}</seed:cot_budget_reflect>\nIt is.</seed:think>{call}"
    assert read(SeedThinking, output) == [("thought", f"{thought}{spent}</seed:cot_budget_reflect>\nIt is."), call]
    assert read(SeedOss, call) == [(0, "get_time", '{"zone": "Asia/Tokyo"}')]
