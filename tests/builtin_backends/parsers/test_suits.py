"""The choice of parsers for templates, and the formats that can be enforced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConstraintError, OutputParser, Plugins

NAMES = ["deepseekv3", "gpt-oss", "hermes", "llama3", "mistral", "pythonic", "qwen25"]
TEMPLATES = {
    'return a json object: <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>': {
        "hermes", "qwen25",
    },
    '<|start_header_id|>ipython … {{- \'"parameters": \' }}': {"llama3"},
    '{{- "[TOOL_CALLS] [" }}': {"mistral"},
    "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type']}}": {"deepseekv3"},
    "<|python_start|>[func_name1(params_name1=params_value1)]": {"pythonic"},
    '"<|start|>assistant<|channel|>final<|message|>"': {"gpt-oss"},
    "<tool_call>\n<function=example>\n<parameter=x>": set(),
    "<|im_start|>{{ message.content }}<|im_end|>": set(),
    "": set(),
}  # fmt: skip


@pytest.fixture(scope="module")
def parsers() -> dict[str, type[OutputParser]]:
    plugins = Plugins.discover()
    assert plugins.names("tool-parser") == NAMES
    assert plugins.names("reasoning-parser") == ["deepseek-r1", "gpt-oss", "qwen3"]
    for name in plugins.names("reasoning-parser"):
        plugins.get("reasoning-parser", name).load(OutputParser)
    return {name: plugins.get("tool-parser", name).load(OutputParser) for name in NAMES}


@pytest.mark.parametrize("template", TEMPLATES)
def test_suits(parsers: dict[str, type[OutputParser]], template: str) -> None:
    assert {name for name, parser in parsers.items() if parser.suits(template)} == TEMPLATES[template]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ENFORCED = ["deepseekv3", "gpt-oss", "hermes", "llama3", "mistral", "pythonic"]
ARGUMENTS = '{"a": 1}'
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    "llama3": '{"name": "%s", "parameters": %s}',
    "mistral": '[{"name": "%s", "arguments": %s}]',
    "pythonic": "[%s(%s)]",
    "gpt-oss": "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s",
    "deepseekv3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n"
    "```json\n%s\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
TWICE = {
    "hermes": "{0}\n{0}",
    "llama3": "{0}; {0}",
    "mistral": '[{{"name": "f", "arguments": {{"a": 1}}}}, {{"name": "f", "arguments": {{"a": 1}}}}]',
    "pythonic": "[f(a=1), f(a=1)]",
    "gpt-oss": "{0}<|call|><|start|>assistant{0}",
}


@pytest.fixture
def accepts(grammar_backends: Any) -> Callable[..., bool]:
    """Return ``accepts(parser, text)``: whether the structure's grammar accepts exactly ``text``."""

    def accept(parser: type[OutputParser], text: str, **options: Any) -> bool:
        constraint = parser.structure({"f": SCHEMA, "g": SCHEMA}, **{"required": True, "parallel": True, **options})
        assert constraint is not None
        compiled = grammar_backends("xgrammar")(constraint.kind, constraint.source)
        return bool(compiled.accepts(text))

    return accept


@pytest.mark.parametrize("name", ENFORCED)
def test_a_required_call_is_one_that_the_parser_reads(
    parsers: dict[str, type[OutputParser]], read: Any, accepts: Callable[..., bool], name: str
) -> None:
    parser, form = parsers[name], WRITTEN[name]
    good, bad = ("a=1", 'a="x"') if name == "pythonic" else (ARGUMENTS, '{"a": "x"}')
    assert accepts(parser, form % ("f", good))
    assert read(parser, form % ("g", good)) == [(0, "g", ARGUMENTS)]
    assert not accepts(parser, form % ("h", good))
    assert not accepts(parser, form % ("f", bad))
    assert not accepts(parser, "Hello")
    assert not accepts(parser, "")


@pytest.mark.parametrize("name", TWICE)
def test_several_calls_only_where_they_are_wanted(
    parsers: dict[str, type[OutputParser]], read: Any, accepts: Callable[..., bool], name: str
) -> None:
    text = TWICE[name].format(WRITTEN[name] % ("f", ARGUMENTS))
    assert accepts(parsers[name], text)
    assert not accepts(parsers[name], text, parallel=False)
    assert read(parsers[name], text) == [(0, "f", ARGUMENTS), (1, "f", ARGUMENTS)]


def test_strict_calls_may_stand_in_text(parsers: dict[str, type[OutputParser]], accepts: Callable[..., bool]) -> None:
    call = WRITTEN["hermes"] % ("f", ARGUMENTS)
    for text in ("Hello", call, f"Wait. {call}", f"{call}\n{call}"):
        assert accepts(parsers["hermes"], text, required=False)
    assert not accepts(parsers["hermes"], WRITTEN["hermes"] % ("h", ARGUMENTS), required=False)
    assert not accepts(parsers["hermes"], f"{call}\n{call}", required=False, parallel=False)


def test_unenforceable_constraints_are_refused_with_a_reason(parsers: dict[str, type[OutputParser]]) -> None:
    assert set(NAMES) == {*ENFORCED, "qwen25"}
    for name in NAMES:
        for required in (True, False):
            assert parsers[name].structure({"f": SCHEMA}, required=required, parallel=True) is not None
    for name in ("pythonic", "gpt-oss"):
        with pytest.raises(ConstraintError, match="'get it' cannot be called"):
            parsers[name].structure({"get it": SCHEMA}, required=True, parallel=True)
