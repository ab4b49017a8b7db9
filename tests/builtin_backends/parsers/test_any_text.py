"""Every parser accepts every text, in any pieces, in linear time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Plugins, Reasoning, Text
from sglang_plug.contracts.text.parsers import Event
from sglang_plug.testing import check_output_parser
from sglang_plug_backends.parsers.deepseek import DeepSeek, DeepSeekV31
from sglang_plug_backends.parsers.harmony import HarmonyCalls
from sglang_plug_backends.parsers.kimi import KimiK2
from sglang_plug_backends.parsers.llama3 import Llama3
from sglang_plug_backends.parsers.marked_json import Granite, Hermes, Nemotron
from sglang_plug_backends.parsers.mistral import Mistral
from sglang_plug_backends.parsers.pythonic import Pythonic

from .conftest import parse

FUNCTIONS = {
    "f": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"enum": ["x", '"y"']}},
    }
}


def registered() -> list[type[OutputParser]]:
    """Return every parser that the built-in plugins declare, once."""
    plugins = Plugins.discover()
    return list(
        dict.fromkeys(
            plugins.get(kind, name).load(OutputParser)
            for kind in ("tool-parser", "reasoning-parser")
            for name in plugins.names(kind)
        )
    )


PARSERS = registered()
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<tool_", '{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": 1}', "{}", "}",
    '{"name": "f", "arguments": {"a": [1, "x\\n"]}}', "[TOOL_CALLS]", "[", "]", "; ", ", ", "f[ARGS]", "[CALL_ID]x",
    "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[f(a=1, ", "b='it\\'s'", "c=(1, {'k': None}))", ")",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>f\n```json\n",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "\n```", "<|channel|>", "analysis", "commentary to=functions.f",
    "<|message|>", "<|start|>", "assistant", "<|end|>", "<|call|>", "final", "<think>", "</think>", " ", "\n", "Hello",
    '"', "\\", "\\u12", "\x00", "é", "\U0001f600", "0", "-1.5e3", "null", "nul",
    "<function=f>", "<parameter=a>\n", "<parameter=b>", "<parameter=c>", "</parameter>", "\n</parameter>",
    "</function>",
    '<invoke name="f">', '<parameter name="a">', '<parameter name="b">', "</invoke>", "<minimax:tool_call>",
    "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>", "<tool_call>f", "<arg_key>b</arg_key><arg_value>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_calls>", "</tool_calls>", "f<tool_sep>",
    "<｜DSML｜function_calls>", '<｜DSML｜invoke name="f">', '<｜DSML｜parameter name="a" string="true">',
    '<｜DSML｜parameter name="b" string="false">', "</｜DSML｜parameter>", "</｜DSML｜invoke>",
    "</｜DSML｜function_calls>",
    "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>", '<steptml:invoke name="f">',
    '<steptml:parameter name="c">', "</steptml:parameter>", "</steptml:invoke>", "<｜tool_call_end｜>",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.f:0", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_call|>", "<TOOLCALL>", "</TOOLCALL>", "<|action_start|> <|plugin|>", "<|action_end|>",
    "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call>call:f{", '<|"|>', "a:", "<tool_call|>", "<response>",
    "</response>", "<answer>", "</answer>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "◁think▷",
    "◁/think▷", "<|channel>thought\n", "<channel|>", "Here is my thought process:", "Here is my response:",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


def cut(text: str, indices: Sequence[int]) -> list[str]:
    """Cut ``text`` at ``indices``, taken modulo its length."""
    ends = sorted({index % (len(text) + 1) for index in indices})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def check_order(events: Sequence[Event]) -> None:
    """Check that calls are numbered from 0, and that each ends before another event."""
    open_call: int | None = None
    calls = 0
    for event in events:
        match event:
            case CallStart(index, name):
                assert (open_call, index) == (None, calls) and name
                open_call, calls = index, calls + 1
            case CallArguments(index, text):
                assert open_call == index and text
            case CallEnd(index):
                assert open_call == index
                open_call = None
            case Text(text) | Reasoning(text):
                assert open_call is None and text
    assert open_call is None


@pytest.mark.parametrize("parser", PARSERS)
@given(texts, st.lists(st.integers(0, 10_000), max_size=8))
@settings(max_examples=60, deadline=None)
def test_how_a_text_is_cut_changes_nothing(parser: type[OutputParser], text: str, indices: list[int]) -> None:
    whole = parse(parser, [text], FUNCTIONS)
    check_order(whole)
    assert parse(parser, cut(text, indices), FUNCTIONS) == whole
    assert parse(parser, text, FUNCTIONS) == whole


@pytest.mark.parametrize("parser", PARSERS)
def test_conformance(parser: type[OutputParser]) -> None:
    check_output_parser(parser, [fragment * 2 for fragment in FRAGMENTS])


LONG = [
    ("<tool_call>", 20_000), ("<tool_call>{", 10_000), ('<tool_call>{"name": "f", "arguments": {"a": 1}}', 2000),
    (" \n", 20_000), ("[", 20_000), ("<", 40_000), ("[TOOL_CALLS]f[ARGS]{", 5000), ('{"name": "', 5000),
    ("<｜tool▁call▁begin｜>", 5000), ("<|channel|>", 5000), ("<|start|>x<|message|>", 5000), ("</think>", 10_000),
    ("[f(a=", 5000), ("<|end|>", 10_000), ("<|python_start|>[f(a='", 4000),
    ("<function=f><parameter=c>\"", 4000), ("<function=f>\n<parameter=b>\n[\"\n</parameter>\n", 4000),
    ("<function=f><parameter=a>x\n</parameter>", 4000), ("<tool_call>f<arg_key>b</arg_key><arg_value>{\"", 3000),
    ("<tool_call>f<arg_key>a</arg_key><arg_value>x", 4000), ("<arg_key>", 9000),
    ("<tool_call>f<arg_key>d</arg_key><arg_value>[[</arg_value>", 3000), ("<minimax:tool_call><invoke name=\"", 4000),
    ("<｜DSML｜function_calls><｜DSML｜invoke name=\"f\">", 3000), ("<tool_calls>", 9000), ("<|tool_call|>[", 5000),
    ("<|tool_call>call:f{a:", 4000), ("<|tool_call>call:f{a:[", 4000), ("<|tool_call_begin|>f", 4000),
    ("<TOOLCALL>", 9000),
]  # fmt: skip


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(("fragment", "times"), LONG)
def test_long_texts_take_one_pass(parser: type[OutputParser], fragment: str, times: int) -> None:
    """The interpreter's steps, which are independent of the machine, grow linearly with the text."""
    short, long = (_steps(parser, fragment * count) for count in (times // 120, times // 30))
    assert long < 6 * short + 2000


def _steps(parser: type[OutputParser], text: str) -> int:
    count = 0

    def trace(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        parse(parser, [text], FUNCTIONS)
        parse(parser, [text[at : at + 7] for at in range(0, len(text), 7)], FUNCTIONS)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("parser", "before", "after"),
    [
        (Hermes, '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        (Llama3, '{"name": "f", "parameters": ', "}"),
        (Mistral, '[TOOL_CALLS][{"name": "f", "arguments": ', "}]"),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (DeepSeekV31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        (Granite, '<|tool_call|>[{"name": "f", "arguments": ', "}]"),
        (Nemotron, '<TOOLCALL>[{"name": "f", "arguments": ', "}]</TOOLCALL>"),
        (KimiK2, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        (HarmonyCalls, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"),
    ],
)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    ),
    st.booleans(),
    st.sampled_from([None, 2]),
)
@settings(max_examples=40, deadline=None)
def test_arguments_come_as_they_were_written(
    parser: type[OutputParser], before: str, after: str, arguments: dict[str, object], ascii: bool, indent: int | None
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii, indent=indent)
    if parser is HarmonyCalls and "<|" in written:
        return
    result = parse(parser, before + written + after)
    id = "functions.f:0" if parser is KimiK2 else None
    assert result == [CallStart(0, "f", id), CallArguments(0, written), CallEnd(0)]


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z_][a-z0-9_]*\Z"),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    )
)
@settings(max_examples=100, deadline=None)
def test_python_literals_become_json(arguments: dict[str, object]) -> None:
    written = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    start, call, end = parse(Pythonic, f"[f({written})]")
    assert (start, end) == (CallStart(0, "f"), CallEnd(0))
    assert isinstance(call, CallArguments) and json.loads(call.text) == arguments
