"""Calls in JSON, Python and Gemma's notation, and tags of reasoning, as the models' templates write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, ReasoningMarks
from sglang_plug.contracts.text.parsers import joined
from sglang_plug_backends.parsers.deepseek import DeepSeekV31
from sglang_plug_backends.parsers.gemma import Gemma4
from sglang_plug_backends.parsers.kimi import KimiK2
from sglang_plug_backends.parsers.marked_json import Ernie45, Granite, HunyuanA13B, InternLM, Nemotron
from sglang_plug_backends.parsers.pythonic import Lfm2, Pythonic
from sglang_plug_backends.parsers.thinking import (
    ErnieThinking,
    GemmaThinking,
    GraniteThinking,
    HunyuanThinking,
    KimiThinking,
    MistralThinking,
    OpenThinking,
    SeedThinking,
    Thinking,
    ThinkingBeforeCalls,
)

Read = Callable[..., list[Any]]
CITY = '{"city": "Oslo"}'
ONE = f'{{"name": "f", "arguments": {CITY}}}'
TWO = f'[{ONE}, {{"name": "g", "arguments": {{}}}}]'
BOTH = [(0, "f", CITY), (1, "g", "{}")]
KIMI = (
    "<|tool_calls_section_begin|>"
    f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{CITY}<|tool_call_end|>"
    "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
V31 = (
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{CITY}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
GEMMA = '<|tool_call>call:f{city:<|"|>Oslo<|"|>}<tool_call|><|tool_call>call:g{}<tool_call|>'
LFM2 = "<|tool_call_start|>[f(city='Oslo'), g()]<|tool_call_end|>"
INTERN = f'<|action_start|> <|plugin|>\n{{"name": "f", "parameters": {CITY}}}<|action_end|>'
WRITTEN: list[tuple[type[OutputParser], str, list[Any]]] = [
    (KimiK2, KIMI, BOTH),
    (KimiK2, KIMI.replace("functions.", ""), BOTH),
    (KimiK2, "Hm. " + KIMI + " Done", ["Hm.", *BOTH, "Done"]),
    (KimiK2, "<|tool_call_begin|>f<|tool_call_argument_begin|><|tool_call_end|>", [(0, "f", "{}")]),
    (KimiK2, "<|tool_call_begin|>f it", ["<|tool_call_begin|>f it"]),
    (DeepSeekV31, V31, BOTH),
    (DeepSeekV31, V31.replace("g<", "function<"), [BOTH[0], (1, "function", "{}")]),
    (Granite, f"<|tool_call|>{TWO}", BOTH),
    (Granite, f"<tool_call>{TWO}", BOTH),
    (Granite, f"<|tool_call|> {TWO}\nDone", [*BOTH, "Done"]),
    (Granite, "<|tool_call|>none", ["<|tool_call|>none"]),
    (HunyuanA13B, f"Yes.\n<tool_calls>{TWO}</tool_calls>", ["Yes.", *BOTH]),
    (HunyuanA13B, f"<tool_calls>{ONE}</tool_calls>", [f"<tool_calls>{ONE}</tool_calls>"]),
    (Nemotron, f"<TOOLCALL>{TWO}</TOOLCALL>\n", BOTH),
    (Nemotron, "<TOOLCALL>[]</TOOLCALL>", ["<TOOLCALL>[]</TOOLCALL>"]),
    (InternLM, f"So {INTERN}", ["So", BOTH[0]]),
    (InternLM, INTERN.replace("> <", "><"), [BOTH[0]]),
    (Ernie45, f"\n\n<tool_call>\n{ONE}\n</tool_call>\n", [BOTH[0]]),
    (Ernie45, "<response>Yes.</response>", ["Yes."]),
    (Gemma4, GEMMA, BOTH),
    (Gemma4, f"<|tool_call>call:f{CITY}<tool_call|><|tool_call>call:g{{}}<tool_call|>", BOTH),
    (Gemma4, "<|tool_call>call f{}<tool_call|>", ["<|tool_call>call f{}<tool_call|>"]),
    (Gemma4, "<|tool_call>call:f{a:[1,", [(0, "f", '{"a": [1, ')]),
    (Gemma4, "<|tool_call>call:f{a}<tool_call|>", [(0, "f", '{"a"'), "}<tool_call|>"]),
    (Lfm2, LFM2, BOTH),
    (Lfm2, f"<|tool_call_start|>{TWO}<|tool_call_end|>Done", [*BOTH, "Done"]),
    (Lfm2, "[f(city='Oslo')]", ["[f(city='Oslo')]"]),
]


@pytest.mark.parametrize(("parser", "text", "expected"), WRITTEN)
def test_calls_as_models_write_them(read: Read, parser: type[OutputParser], text: str, expected: list[Any]) -> None:
    assert read(parser, text) == expected


def test_ids_of_kimi_are_passed_on_once() -> None:
    starts = [event for event in KimiK2().feed(KIMI) if isinstance(event, CallStart)]
    assert [start.id for start in starts] == ["functions.f:0", "functions.g:1"]
    starts = [event for event in KimiK2().feed(KIMI + KIMI) if isinstance(event, CallStart)]
    assert [start.id for start in starts[2:]] == [None, None]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('<|"|>a "b" {c}\n<|"|>', 'a "b" {c}\n'),
        ("-1.5e3", -1500.0),
        ("true", True),
        ("None", None),
        ("word", "word"),
        ('[<|"|>a<|"|>,2,[ ],{}]', ["a", 2, [], {}]),
        ('{k:1, <|"|>l m<|"|>:{n:[false]}}', {"k": 1, "l m": {"n": [False]}}),
    ],
)
def test_values_of_gemma(read: Read, written: str, value: Any) -> None:
    ((_, _, arguments),) = read(Gemma4, f"<|tool_call>call:f{{a:{written},b:0}}<tool_call|>")
    assert json.loads(arguments) == {"a": value, "b": 0}


def test_strings_of_gemma_arrive_as_they_are_written() -> None:
    parser = Gemma4()
    assert joined(parser.feed('<|tool_call>call:f{a:<|"|>lo')) == [CallStart(0, "f"), CallArguments(0, '{"a": "lo')]
    assert joined(parser.feed('ng<|"')) == [CallArguments(0, "ng")]
    assert joined(parser.feed("|>}")) == [CallArguments(0, '"}'), CallEnd(0)]


def test_half_a_surrogate_pair_stays_an_escape(read: Read) -> None:
    ((_, _, arguments),) = read(Pythonic, r"[f(a='\ud83d\ude00', b='\ud83d')]")
    arguments.encode()
    assert json.loads(arguments) == {"a": "\U0001f600", "b": "\ud83d"}


THOUGHT = ("thought", "Hm.")
REASONED: list[tuple[type[OutputParser], str, list[Any]]] = [
    (KimiThinking, "◁think▷Hm.◁/think▷Yes.", [THOUGHT, "Yes."]),
    (MistralThinking, "[THINK]Hm.[/THINK]Yes.", [THOUGHT, "Yes."]),
    (SeedThinking, "<seed:think>\nHm.\n</seed:think>\nYes.", [THOUGHT, "Yes."]),
    (GemmaThinking, "<|channel>thought\nHm.\n<channel|>Yes.", [THOUGHT, "Yes."]),
    (GemmaThinking, "Yes.", ["Yes."]),
    (HunyuanThinking, "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", [THOUGHT, "Yes."]),
    (HunyuanThinking, "<think>Hm.</think>Yes.</answer>", [THOUGHT, "Yes.</answer>"]),
    (ErnieThinking, "Hm.\n</think>\n\n\n<response>\nYes.\n</response>\n", [THOUGHT, "Yes."]),
    (ErnieThinking, "Hm.\n</think>\n\n\n<tool_call>\n{}", [THOUGHT, "<tool_call>\n{}"]),
    (GraniteThinking, "Here is my thought process: Hm. Here is my response: Yes.", [THOUGHT, "Yes."]),
    (GraniteThinking, "<think>Hm.</think><response>Yes.</response>", [THOUGHT, "Yes."]),
    (GraniteThinking, "Here is my response: Yes.", ["Here is my response: Yes."]),
]


@pytest.mark.parametrize(("parser", "text", "expected"), REASONED)
def test_reasoning_as_models_write_it(read: Read, parser: type[OutputParser], text: str, expected: list[Any]) -> None:
    assert read(parser, text) == expected


def test_a_call_ends_reasoning_where_functions_may_be_called(read: Read) -> None:
    for call in ("<tool_call>\n<function=f>", KIMI):
        text = f"<think>Hm.\n{call}"
        inside = [("thought", f"Hm.\n{call}")]
        assert read(ThinkingBeforeCalls, text, functions={"f": {}}) == [THOUGHT, call]
        assert read(ThinkingBeforeCalls, text) == read(ThinkingBeforeCalls, text, functions={}) == inside
        assert read(Thinking, text, functions={"f": {}}) == inside


@pytest.mark.parametrize(
    ("parser", "opening", "closing"),
    [
        (Thinking, "<think>", "</think>"),
        (SeedThinking, "<seed:think>", "</seed:think>"),
        (GemmaThinking, "<|channel>thought\n", "<channel|>"),
        (HunyuanThinking, "<think>", "</think>"),
    ],
)
def test_marks_of_reasoning(parser: type[OutputParser], opening: str, closing: str) -> None:
    assert parser.marks("<|user|>", calls=False) == ReasoningMarks((closing,), opening)
    assert parser.marks(f"<|user|>{opening}\n", calls=False) == ReasoningMarks((closing,), opened=opening)
    assert parser.marks(f"{opening}{closing}\n\n", calls=True) is None


def test_marks_of_reasoning_that_is_always_open() -> None:
    for parser in (OpenThinking, ErnieThinking):
        assert parser.marks("x", calls=False) == ReasoningMarks(("</think>",))
        assert parser.marks("</think>\n", calls=False) is None
    assert GraniteThinking.marks("x", calls=False) is None
