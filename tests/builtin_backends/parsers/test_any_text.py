"""Every parser accepts every text in any pieces and reads it in one pass."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.contracts.text.parsers import Event
from sglang_plug_backends.parsers.deepseek import DeepSeek
from sglang_plug_backends.parsers.harmony import HarmonyCalls, HarmonyReasoning
from sglang_plug_backends.parsers.llama3 import Llama3
from sglang_plug_backends.parsers.mistral import Mistral
from sglang_plug_backends.parsers.pythonic import Pythonic
from sglang_plug_backends.parsers.tagged import Tagged
from sglang_plug_backends.parsers.thinking import OpenThinking, Thinking

from .conftest import parse

PARSERS: list[type[OutputParser]] = [
    DeepSeek, HarmonyCalls, HarmonyReasoning, Llama3, Mistral, OpenThinking, Pythonic, Tagged, Thinking,
]  # fmt: skip
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<tool_", '{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": 1}', "{}", "}",
    '{"name": "f", "arguments": {"a": [1, "x\\n"]}}', "[TOOL_CALLS]", "[", "]", "; ", ", ", "f[ARGS]", "[CALL_ID]x",
    "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[f(a=1, ", "b='it\\'s'", "c=(1, {'k': None}))", ")",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>f\n```json\n",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "\n```", "<|channel|>", "analysis", "commentary to=functions.f",
    "<|message|>", "<|start|>", "assistant", "<|end|>", "<|call|>", "final", "<think>", "</think>", " ", "\n", "Hello",
    '"', "\\", "\\u12", "\x00", "é", "\U0001f600", "0", "-1.5e3", "null", "nul",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Cut ``text`` at ``places``, taken modulo its length."""
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def check_order(events: Sequence[Event]) -> None:
    """Check that calls are numbered from 0, and one ends before anything else comes."""
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
def test_how_a_text_is_cut_changes_nothing(parser: type[OutputParser], text: str, places: list[int]) -> None:
    whole = parse(parser, [text])
    check_order(whole)
    assert parse(parser, cut(text, places)) == whole
    assert parse(parser, text) == whole


LONG = [
    ("<tool_call>", 20_000), ("<tool_call>{", 10_000), ('<tool_call>{"name": "f", "arguments": {"a": 1}}', 2000),
    (" \n", 20_000), ("[", 20_000), ("<", 40_000), ("[TOOL_CALLS]f[ARGS]{", 5000), ('{"name": "', 5000),
    ("<｜tool▁call▁begin｜>", 5000), ("<|channel|>", 5000), ("<|start|>x<|message|>", 5000), ("</think>", 10_000),
    ("[f(a=", 5000), ("<|end|>", 10_000), ("<|python_start|>[f(a='", 4000),
]  # fmt: skip


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(("fragment", "times"), LONG)
def test_long_texts_take_one_pass(parser: type[OutputParser], fragment: str, times: int) -> None:
    """Steps of the interpreter, not seconds: four times the text takes about four times the steps."""
    short, long = (_steps(parser, fragment * count) for count in (times // 80, times // 20))
    assert long < 6 * short + 2000


def _steps(parser: type[OutputParser], text: str) -> int:
    count = 0

    def trace(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        parse(parser, [text])
        parse(parser, [text[at : at + 7] for at in range(0, len(text), 7)])
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("parser", "before", "after"),
    [
        (Tagged, '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        (Llama3, '{"name": "f", "parameters": ', "}"),
        (Mistral, '[TOOL_CALLS][{"name": "f", "arguments": ', "}]"),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
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
    assert result == [CallStart(0, "f"), CallArguments(0, written), CallEnd(0)]


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
