"""Each call format as documented, and outputs that almost follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Text
from sglang_plug.contracts.text.parsers import Event, joined
from sglang_plug_backends.parsers.deepseek import DeepSeek
from sglang_plug_backends.parsers.harmony import HarmonyCalls, HarmonyReasoning
from sglang_plug_backends.parsers.llama3 import Llama3
from sglang_plug_backends.parsers.marked_json import Hermes
from sglang_plug_backends.parsers.mistral import Mistral
from sglang_plug_backends.parsers.pythonic import Pythonic
from sglang_plug_backends.parsers.thinking import OpenThinking, Thinking

Read = Callable[..., list[Any]]
CITY = '{"city": "Boston"}'

TAGGED = [
    (f'<tool_call>\n{{"name": "f", "arguments": {CITY}}}\n</tool_call>', [(0, "f", CITY)]),
    (
        'Both.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"a": [1, {"b": null}]}}\n</tool_call>\n',
        ["Both.", (0, "f", "{}"), (1, "g", '{"a": [1, {"b": null}]}')],
    ),
    (f'<tool_call>{{"arguments": {CITY}, "name": "f"}}</tool_call>', [(0, "f", CITY)]),
    ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', [(0, "f", "{}")]),
    ('<tool_call>{"name": "f"}</tool_call>', [(0, "f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [(0, "f", "{}")]),
    (r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>', [(0, "f", '{"a": 1}')]),
    ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', [(0, "f", r'{"a": "x\ny"}')]),
    ('<tool_call>{"name": "f"} {"name": "g"}</tool_call> Done.', [(0, "f", "{}"), (1, "g", "{}"), "Done."]),
    ('<tool_call>{"name": "f"}', [(0, "f", "{}")]),
    ('<tool_call>{"name": "f"} then', [(0, "f", "{}"), "then"]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1, "b', [(0, "f", '{"a": 1, "b')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>', [(0, "f", '{"a": '), "}}</tool_call>"]),
    ('<tool_call>{"name": "f", "argu', ['<tool_call>{"name": "f", "argu']),
    ('<tool_call>{"answer": 42}</tool_call>', ['<tool_call>{"answer": 42}</tool_call>']),
    ('<tool_call>{"name": ""}</tool_call>', ['<tool_call>{"name": ""}</tool_call>']),
    ('<tool_call>{"name": 5}</tool_call>', ['<tool_call>{"name": 5}</tool_call>']),
    ("<tool_call>f(1)</tool_call>", ["<tool_call>f(1)</tool_call>"]),
    ('<tool_call><tool_call>{"name": "f"}</tool_call>', ["<tool_call>", (0, "f", "{}")]),
    ("2 <tool 3 ", ["2 <tool 3 "]),
    ("  ", ["  "]),
    ("", []),
]
LLAMA3 = [
    (f'{{"name": "f", "parameters": {CITY}}}', [(0, "f", CITY)]),
    (f'<|python_tag|>{{"name": "f", "parameters": {CITY}}}', [(0, "f", CITY)]),
    ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [(0, "f", "{}"), (1, "g", "{}")]),
    ('{"type": "function", "name": "f", "parameters": {}}\n', [(0, "f", "{}")]),
    ('Wait. <|python_tag|>{"name": "f", "parameters": {}}', ["Wait.", (0, "f", "{}")]),
    ('{"answer": {"name": "f"}}', ['{"answer": {"name": "f"}}']),
    ('I call {"name": "f"}', ['I call {"name": "f"}']),
    ('<|python_tag|>search.call(query="x")', ['<|python_tag|>search.call(query="x")']),
]
MISTRAL = [
    (f'[TOOL_CALLS] [{{"name": "f", "arguments": {CITY}}}]', [(0, "f", CITY)]),
    ('[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g"}]', [(0, "f", "{}"), (1, "g", "{}")]),
    (f"[TOOL_CALLS]f[ARGS]{CITY}", [(0, "f", CITY)]),
    ("Ok.[TOOL_CALLS]f[CALL_ID]a1[ARGS]{}[TOOL_CALLS]g[ARGS]{}", ["Ok.", (0, "f", "{}"), (1, "g", "{}")]),
    ('[{"name": "f", "arguments": {}}]', [(0, "f", "{}")]),
    ("[1] is a source", ["[1] is a source"]),
    ("[TOOL_CALLS] none", ["[TOOL_CALLS] none"]),
]
BEGIN, END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
ALL = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
DEEPSEEK = [
    (ALL.format(f"{BEGIN}function<｜tool▁sep｜>f\n```json\n{CITY}\n```{END}"), [(0, "f", CITY)]),
    (
        "Two."
        + ALL.format(f"{BEGIN}function<｜tool▁sep｜>f\n```json\n{{}}\n```{END}\n{BEGIN}g<｜tool▁sep｜>{{}}{END}"),
        ["Two.", (0, "f", "{}"), (1, "g", "{}")],
    ),
    (ALL.format(f"{BEGIN}f<｜tool▁sep｜>{CITY}{END}"), [(0, "f", CITY)]),
    (f"{BEGIN}f<｜tool▁sep｜>later", [f"{BEGIN}f<｜tool▁sep｜>later"]),
    (f"{BEGIN}f", [f"{BEGIN}f"]),
]
PYTHONIC = [
    ("[f(city='Boston', days=3)]", [(0, "f", '{"city": "Boston", "days": 3}')]),
    ("[f(), a.g(x=[True, None, -1.5e3], y=('a',), z={'k': False,})]", [
        (0, "f", "{}"), (1, "a.g", '{"x": [true, null, -1.5e3], "y": ["a"], "z": {"k": false}}'),
    ]),
    ("<|python_start|>[f(a=1)]<|python_end|>", [(0, "f", '{"a": 1}')]),
    (r"[f(a='it\'s \x41\u00e9\n\d')]", [(0, "f", '{"a": "it\'s A\u00e9\\n\\\\d"}')]),
    ("[f(1)]", ["[f(1)]"]),
    ("[see](link)", ["[see](link)"]),
    ("[f(a=open('x'))]", [(0, "f", '{"a": '), "('x'))]"]),
    ("The list [f()]", ["The list [f()]"]),
]  # fmt: skip
CALL = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{CITY}<|call|>"
HARMONY = [
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + CALL, [("thought", "Hm."), (0, "f", CITY)]),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", [
        ("thought", "Hm."), "Yes.",
    ]),
    (f"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{CITY}<|call|>", [(0, "f", CITY)]),
    (f" to=functions.f<|channel|>commentary json<|message|>{CITY}", [(0, "f", CITY)]),
    ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL, ["I look.", (0, "f", CITY)]),
    ("<|channel|>commentary to=functions.f<|message|><|call|>", [(0, "f", "{}")]),
    ("<|channel|>final<|message|>Cut o", ["Cut o"]),
    ("Bare.", ["Bare."]),
    ("<|channel|>final", ["<|channel|>final"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TAGGED)
def test_hermes_and_qwen(read: Read, text: str, expected: list[Any]) -> None:
    assert read(Hermes, text) == expected


@pytest.mark.parametrize(("text", "expected"), LLAMA3)
def test_llama3(read: Read, text: str, expected: list[Any]) -> None:
    assert read(Llama3, text) == expected


@pytest.mark.parametrize(("text", "expected"), MISTRAL)
def test_mistral(read: Read, text: str, expected: list[Any]) -> None:
    assert read(Mistral, text) == expected


@pytest.mark.parametrize(("text", "expected"), DEEPSEEK)
def test_deepseek(read: Read, text: str, expected: list[Any]) -> None:
    assert read(DeepSeek, text) == expected


@pytest.mark.parametrize(("text", "expected"), PYTHONIC)
def test_pythonic(read: Read, text: str, expected: list[Any]) -> None:
    assert read(Pythonic, text) == expected


@pytest.mark.parametrize(("text", "expected"), HARMONY)
def test_harmony(read: Read, text: str, expected: list[Any]) -> None:
    assert read(HarmonyCalls, text) == expected


def test_reasoning_of_harmony_leaves_calls_to_the_parser_of_calls(read: Read) -> None:
    prompt = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    thought, call = read(HarmonyReasoning, prompt + CALL)
    assert thought == ("thought", "Hm.")
    assert read(HarmonyCalls, call) == [(0, "f", CITY)]


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        (Thinking, "<think>\nHm. \n</think>\n\nYes. \n", [("thought", "Hm."), "Yes. \n"]),
        (Thinking, "Yes.", ["Yes."]),
        (Thinking, "<think>\n\n</think>\n\nYes.", ["Yes."]),
        (Thinking, "<think>Cut", [("thought", "Cut")]),
        (Thinking, " <thin", [" <thin"]),
        (Thinking, "Yes. <think>x</think>", ["Yes. <think>x</think>"]),
        (OpenThinking, "Hm.\n</think>\nYes.</think>", [("thought", "Hm."), "Yes.</think>"]),
        (OpenThinking, "<think>Hm.</think>Yes.", [("thought", "Hm."), "Yes."]),
        (OpenThinking, "a <b> c", [("thought", "a <b> c")]),
    ],
)
def test_thinking(read: Read, parser: type[OutputParser], text: str, expected: list[Any]) -> None:
    assert read(parser, text) == expected


def test_ids_of_the_model_are_kept() -> None:
    parser = Mistral()
    events = parser.feed('[TOOL_CALLS][{"id": "a1", "name": "f", "arguments": {}}]')
    assert events[0] == CallStart(0, "f", "a1")
    assert Mistral().feed("[TOOL_CALLS]f[CALL_ID]b2[ARGS]{")[0] == CallStart(0, "f", "b2")


def test_everything_comes_as_soon_as_it_is_certain() -> None:
    parser = Hermes()

    def events_of(text: str) -> list[Event]:
        return joined(parser.feed(text))

    assert events_of("Let me") == [Text("Let me")]
    assert events_of(" see.\n<tool") == [Text(" see.")]
    assert events_of('_call>{"name": "f"') == []
    assert events_of(', "arguments": {"a') == [CallStart(0, "f"), CallArguments(0, '{"a')]
    assert events_of('b": "long') == [CallArguments(0, 'b": "long')]
    assert events_of(' text"}') == [CallArguments(0, ' text"}')]
    assert events_of("}") == [CallEnd(0)]
    assert events_of("</tool_call>") == []
    assert parser.finish() == []


def test_python_arguments_come_as_they_are_written() -> None:
    parser = Pythonic()
    assert joined(parser.feed("[f(a='lo")) == [CallStart(0, "f"), CallArguments(0, '{"a": "lo')]
    assert joined(parser.feed("ng', b=[")) == [CallArguments(0, 'ng", "b": [')]
    assert joined(parser.feed("1])]")) == [CallArguments(0, "1]}"), CallEnd(0)]
