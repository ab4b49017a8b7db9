"""Calls with tagged arguments, as the models' templates show them, and outputs that almost follow the format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Text
from sglang_plug.contracts.text.parsers import joined
from sglang_plug.testing import check_output_parser
from sglang_plug_backends.parsers.xml.calls import XmlCalls
from sglang_plug_backends.parsers.xml.formats import (
    DeepSeekV4,
    DeepSeekV32,
    Glm45,
    Glm47,
    Hunyuan,
    MiniMaxM2,
    Qwen3Coder,
    SeedOss,
    Step3,
)

Read = Callable[..., list[Any]]
FUNCTIONS = {
    "find": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "unit": {"enum": ["c", "f"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "exact": {"type": "boolean"},
            "other": {"$ref": "#/$defs/code"},
        },
        "$defs": {"code": {"type": "string"}},
    },
    "now": {"type": "object", "properties": {}},
}
FOUND = (0, "find", '{"city": "Oslo", "days": 3}')
NOW = (1, "now", "{}")
QWEN = """I look it up.
<tool_call>
<function=find>
<parameter=city>
Oslo
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>
<tool_call>
<function=now>
</function>
</tool_call>"""
SEED = """I look it up.
<seed:tool_call>
<function=find>
<parameter=city>Oslo</parameter>
<parameter=days>3</parameter>
</function>
</seed:tool_call>
<seed:tool_call>
<function=now>
</function>
</seed:tool_call>"""
MINIMAX = """I look it up.
<minimax:tool_call>
<invoke name="find">
<parameter name="city">Oslo</parameter>
<parameter name="days">3</parameter>
</invoke>
<invoke name="now">
</invoke>
</minimax:tool_call>"""
STEP = """I look it up.<｜tool_calls_begin｜>
<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="find">
<steptml:parameter name="city">Oslo</steptml:parameter>
<steptml:parameter name="days">3</steptml:parameter>
</steptml:invoke><｜tool_call_end｜>
<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now">
</steptml:invoke><｜tool_call_end｜>
<｜tool_calls_end｜>"""
GLM45 = """I look it up.
<tool_call>find
<arg_key>city</arg_key>
<arg_value>Oslo</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
</tool_call>
<tool_call>now
</tool_call>"""
GLM47 = GLM45.replace("\n", "").replace("up.", "up. ")
HUNYUAN = """I look it up.<tool_calls>
<tool_call>find<tool_sep>
<arg_key>city</arg_key>
<arg_value>Oslo</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
</tool_call>
<tool_call>now<tool_sep>
</tool_call>
</tool_calls>"""
HUNYUAN_MARKED = HUNYUAN.replace("<tool_calls>", "<tool_calls:opensource>")
for mark in ("/tool_calls", "tool_call", "/tool_call", "tool_sep", "arg_key", "/arg_key", "arg_value", "/arg_value"):
    HUNYUAN_MARKED = HUNYUAN_MARKED.replace(f"<{mark}>", f"<{mark}:opensource>")
DSML = """I look it up.

<｜DSML｜function_calls>
<｜DSML｜invoke name="find">
<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
<｜DSML｜invoke name="now">
</｜DSML｜invoke>
</｜DSML｜function_calls>"""
WRITTEN: list[tuple[type[OutputParser], str]] = [
    (Qwen3Coder, QWEN),
    (Qwen3Coder, QWEN.replace("<tool_call>\n", "").replace("</tool_call>", "")),
    (Qwen3Coder, QWEN.replace("<tool_call>\n", "")),
    (SeedOss, SEED),
    (MiniMaxM2, MINIMAX),
    (Step3, STEP),
    (Glm45, GLM45),
    (Glm47, GLM45),
    (Glm45, GLM47),
    (Glm47, GLM47),
    (Hunyuan, HUNYUAN),
    (Hunyuan, HUNYUAN_MARKED),
    (DeepSeekV32, DSML),
    (DeepSeekV32, DSML.replace("function_calls", "tool_calls")),
    (DeepSeekV4, DSML.replace("function_calls", "tool_calls")),
    *((parser, DSML.replace('"now">\n</｜DSML｜invoke>', '"now"/>')) for parser in (DeepSeekV32, DeepSeekV4)),
]
MODELS = (Qwen3Coder, SeedOss, MiniMaxM2, Step3, Glm45, Glm47, Hunyuan, DeepSeekV32, DeepSeekV4)


@pytest.mark.parametrize(("parser", "text"), WRITTEN)
def test_calls_as_models_write_them(read: Read, parser: type[OutputParser], text: str) -> None:
    assert read(parser, text, functions=FUNCTIONS) == ["I look it up.", FOUND, NOW]
    assert read(parser, text + "\nDone.", functions=FUNCTIONS) == ["I look it up.", FOUND, NOW, "Done."]


@pytest.mark.parametrize(("parser", "text"), WRITTEN)
def test_conformance(parser: type[OutputParser], text: str) -> None:
    check_output_parser(parser, [text[: len(text) // 2], text[3:]], calls=[text], functions=FUNCTIONS)


def qwen(key: str, value: str) -> str:
    return f"<tool_call>\n<function=find>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"


def glm(key: str, value: str) -> str:
    return f"<tool_call>find\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


VALUES: list[tuple[str, str, Any]] = [
    ("city", "5", "5"),
    ("city", "true", "true"),
    ("city", '"Oslo"', '"Oslo"'),
    ("city", '{"a": 1}', '{"a": 1}'),
    ("city", " two\n lines \\n é ", " two\n lines \\n é "),
    ("city", "", ""),
    ("other", "12", "12"),
    ("days", "12", 12),
    ("days", " 12 ", 12),
    ("days", "a dozen", "a dozen"),
    ("days", "1.5", 1.5),
    ("exact", "true", True),
    ("exact", "False", False),
    ("tags", '["a", "b"]', ["a", "b"]),
    ("tags", '["</parameter>", "</arg_value>"]', ["</parameter>", "</arg_value>"]),
    ("tags", "['a', 'it\\'s']", ["a", "it's"]),
    ("tags", "a, b", "a, b"),
    ("unit", "c", "c"),
    ("unit", '"c"', "c"),
    ("note", "null", None),
    ("note", "nullable", "nullable"),
    ("note", '"x"', "x"),
    ("note", "7", "7"),
    ("unknown", "7", 7),
    ("unknown", "seven", "seven"),
    ("unknown", '[1, "x', '[1, "x'),
]


@pytest.mark.parametrize(("key", "written", "value"), VALUES)
@pytest.mark.parametrize("form", [qwen, glm])
def test_values_have_the_type_of_the_schema(
    read: Read, form: Callable[[str, str], str], key: str, written: str, value: Any
) -> None:
    parser = Qwen3Coder if form is qwen else Glm45
    ((_, _, arguments),) = read(parser, form(key, written), functions=FUNCTIONS)
    assert json.loads(arguments) == {key: value}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": ["integer", "string"]}, "5", 5),
        ({"type": ["integer", "string"]}, "five", "five"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "string", "maxLength": 9}, '"x"', "x"),
        ({"const": "7"}, "7", "7"),
        ({"enum": ['"q"', "q"]}, '"q"', '"q"'),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"$ref": "#/properties/a"}, "x", "x"),
        ({"$ref": "#/missing"}, "5", 5),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "{}", {}),
        ({"allOf": [{"type": "string"}]}, "5", "5"),
        ({"type": "sting"}, "5", 5),
        ({"type": 7, "enum": "x", "anyOf": 5}, "5", 5),
        (True, "5", 5),
        (None, "5", 5),
        ({}, "5", 5),
    ],
)
def test_any_schema_of_a_caller_is_understood(read: Read, schema: Any, written: str, value: Any) -> None:
    functions = {"find": {"type": "object", "properties": {"a": schema}}}
    ((_, _, arguments),) = read(Qwen3Coder, qwen("a", written), functions=functions)
    assert json.loads(arguments) == {"a": value}


def test_types_of_arguments_that_the_schema_does_not_name(read: Read) -> None:
    functions = {"find": {"type": "object", "additionalProperties": {"type": "string"}}}
    ((_, _, arguments),) = read(Qwen3Coder, qwen("a", "5"), functions=functions)
    assert json.loads(arguments) == {"a": "5"}
    for invalid in ({"properties": 5}, {"properties": {"a": 5}}, {"$ref": "#"}, {"additionalProperties": 5}):
        ((_, _, arguments),) = read(Qwen3Coder, qwen("a", "5"), functions={"find": invalid})
        assert json.loads(arguments) == {"a": 5}


MALFORMED: list[tuple[type[OutputParser], str, list[Any]]] = [
    (Qwen3Coder, "<tool_call>\nfind\n</tool_call>", ["<tool_call>\nfind\n</tool_call>"]),
    (Qwen3Coder, "a <function= b", ["a <function= b"]),
    (Qwen3Coder, "<tool_call>\n<function=find", ["<tool_call>\n<function=find"]),
    (Qwen3Coder, "<function=find>\n<parameter=a>\nx", [(0, "find", '{"a": "x')]),
    (Qwen3Coder, "<function=find>\n<parameter=a>\nx\n</parameter>", [(0, "find", '{"a": "x"')]),
    (Qwen3Coder, "<function=find>oops</function>", [(0, "find", ""), "oops</function>"]),
    (
        Qwen3Coder,
        "<function=find>\n<parameter=a>\n1\n</parameter>\n<oops></function>",
        [(0, "find", '{"a": 1'), "<oops></function>"],
    ),
    (Qwen3Coder, "<tool_call>" * 2, ["<tool_call>" * 2]),
    (Glm45, "<tool_call>find", ["<tool_call>find"]),
    (Glm45, "<tool_call>find it</tool_call>", ["<tool_call>find it</tool_call>"]),
    (Glm45, '<tool_call>{"name": "find"}</tool_call>', ['<tool_call>{"name": "find"}</tool_call>']),
    (Glm45, "<tool_call></tool_call>", ["<tool_call></tool_call>"]),
    (Glm45, "<tool_call>find<arg_key>a</arg_key>x", ["<tool_call>find<arg_key>a</arg_key>x"]),
    (MiniMaxM2, "<minimax:tool_call>\n</minimax:tool_call>", ["<minimax:tool_call>\n</minimax:tool_call>"]),
    (MiniMaxM2, '<minimax:tool_call><invoke name="">', ['<minimax:tool_call><invoke name="">']),
    (
        MiniMaxM2,
        '<minimax:tool_call><invoke name="now"></invoke> and more',
        [(0, "now", "{}"), "and more"],
    ),
    (
        DeepSeekV32,
        '<｜DSML｜function_calls><｜DSML｜invoke name="find"><｜DSML｜parameter name="a">x',
        [(0, "find", ""), '<｜DSML｜parameter name="a">x'],
    ),
    (DeepSeekV4, '<｜DSML｜tool_calls><｜DSML｜invoke name=""/>', ['<｜DSML｜tool_calls><｜DSML｜invoke name=""/>']),
    (Step3, "<｜tool_calls_begin｜>x", ["<｜tool_calls_begin｜>x"]),
    (Hunyuan, "<tool_calls><tool_call>x</tool_call>", ["<tool_calls><tool_call>x</tool_call>"]),
]


@pytest.mark.parametrize(("parser", "text", "expected"), MALFORMED)
def test_malformed_calls_are_text(read: Read, parser: type[OutputParser], text: str, expected: list[Any]) -> None:
    assert read(parser, text) == expected


@pytest.mark.parametrize("parser", MODELS)
def test_text_that_only_looks_like_a_call_is_text(read: Read, parser: type[OutputParser]) -> None:
    for text in ("a < b > c", "<tool", "</parameter>", "<｜", "<b>bold</b>", "x <minimax:", "<seed:", "{}", "\n"):
        assert read(parser, text) == [text]


@pytest.mark.parametrize("parser", [DeepSeekV32, MiniMaxM2, SeedOss, Qwen3Coder])
def test_arguments_may_also_be_an_object(read: Read, parser: type[XmlCalls]) -> None:
    form = parser.forms[0]
    text = f'{form.opening}\n{form.begin[0]}find{form.name_end}\n{{"city": "Oslo"}}\n{form.end[0]}\n{form.closing}'
    assert read(parser, text) == [(0, "find", '{"city": "Oslo"}')]


def test_strings_arrive_as_they_are_written() -> None:
    parser = Qwen3Coder.for_functions(FUNCTIONS)
    assert joined(parser.feed("Well.\n<tool_call>\n<function=fi")) == [Text("Well.")]
    assert joined(parser.feed("nd>\n")) == [CallStart(0, "find")]
    assert joined(parser.feed("<parameter=city>\nNew")) == [CallArguments(0, '{"city": "New')]
    assert joined(parser.feed(' "York"\n</para')) == [CallArguments(0, ' \\"York\\"')]
    assert joined(parser.feed("meter>\n<parameter=days>\n1")) == [CallArguments(0, '", "days": ')]
    assert joined(parser.feed("2\n</parameter>\n")) == [CallArguments(0, "12")]
    assert joined(parser.feed("</function>")) == [CallArguments(0, "}"), CallEnd(0)]
    assert parser.feed("\n</tool_call>") + parser.finish() == []
