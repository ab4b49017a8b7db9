"""The choice of parsers for templates, and the formats that can be enforced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConstraintError, OutputParser, Plugins

from .conftest import ENFORCED

NAMES = [
    "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "deepseekv3", "deepseekv31", "deepseekv32",
    "deepseekv4", "ernie45", "gemma4", "glm", "glm45", "glm47", "gpt-oss", "granite", "granite4", "hermes", "hunyuan",
    "hunyuan_a13b", "hy_v3", "internlm", "interns1", "kimi_k2", "lfm2", "llama3", "llama3_json", "llama4_json",
    "llama4_pythonic", "minimax-m2", "minimax_m2", "mistral", "nanbeige", "nemotron_json", "openai", "pythonic",
    "qwen", "qwen25", "qwen3_coder", "qwen3_xml", "seed_oss", "step3", "step3p5",
]  # fmt: skip
REASONING = [
    "deepseek-r1", "deepseek-v3", "deepseek-v4", "deepseek-v41", "deepseek_r1", "deepseek_v3", "deepseek_v4", "dots",
    "ernie45", "gemma4", "gigachat35", "glm45", "glm47", "gpt-oss", "granite", "granite_thinking_parser", "hunyuan",
    "hunyuan_a13b", "hy_v3", "interns1", "kimi", "kimi_k2", "mimo", "minimax", "minimax_m2", "mistral", "nanbeige",
    "nemotron_3", "nemotron_v3", "openai_gptoss", "poolside_v1", "qwen3", "qwen3-thinking", "seed_oss", "step3",
    "step3p5",
]  # fmt: skip
TEMPLATES = {
    'return a json object: <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>': {
        "hermes", "qwen", "qwen25", "granite4",
    },
    '<|start_header_id|>ipython … {{- \'"parameters": \' }}': {"llama3", "llama3_json", "llama4_json"},
    '{{- "[TOOL_CALLS] [" }}': {"mistral"},
    "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type']}}": {"deepseekv3", "deepseek_v3"},
    "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'}}": {
        "deepseekv31", "deepseek_v31",
    },
    '<{{ dsml_token }}function_calls> … {%- set dsml_token = "｜DSML｜" -%}': {"deepseekv32", "deepseek_v32"},
    '<{{ dsml_token }}tool_calls> … {%- set dsml_token = "｜DSML｜" -%}': {"deepseekv4", "deepseek_v4"},
    "<|python_start|>[func_name1(params_name1=params_value1)]": {"pythonic", "llama4_pythonic"},
    '"<|start|>assistant<|channel|>final<|message|>"': {"gpt-oss", "openai"},
    "<tool_call>\n<function=example>\n<parameter=x>": {"qwen3_coder", "qwen3_xml", "step3p5", "nanbeige"},
    "{%- set begin = '<seed:tool_call>' -%} <function=example>": {"seed_oss"},
    "'<minimax:tool_call>' <invoke name=\"tool-name-1\"> <response>": {"minimax-m2", "minimax_m2"},
    '<｜tool_calls_begin｜> <steptml:invoke name="': {"step3"},
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>": {"glm45", "glm"},
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>": {"glm47"},
    '<tool_calls><tool_call>name<tool_sep><arg_key>k</arg_key><arg_value>"arguments"': {"hunyuan", "hy_v3"},
    '<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>': {"hunyuan_a13b"},
    "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>": {"kimi_k2"},
    "<|im_system|>tool_declare<|im_middle|>": {"kimi_k2"},
    "respond with <|tool_call|> followed by a JSON list": {"granite"},
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> <response>': {"ernie45"},
    "<|action_start|><|plugin|>": {"interns1", "internlm"},
    '<TOOLCALL>[{{"name": "tool_name1", "arguments": "tool_args1"}}]</TOOLCALL>': {"nemotron_json"},
    "List of tools: <|tool_list_start|>[": {"lfm2"},
    "{{- '<|tool_call>call:' + function['name'] + '{' -}}": {"gemma4"},
    "<|im_start|>{{ message.content }}<|im_end|>": set(),
    "": set(),
}  # fmt: skip


@pytest.fixture(scope="module")
def parsers() -> dict[str, type[OutputParser]]:
    plugins = Plugins.discover()
    assert plugins.names("tool-parser") == NAMES
    assert plugins.names("reasoning-parser") == REASONING
    for name in plugins.names("reasoning-parser"):
        plugins.get("reasoning-parser", name).load(OutputParser)
    return {name: plugins.get("tool-parser", name).load(OutputParser) for name in NAMES}


@pytest.mark.parametrize("template", TEMPLATES)
def test_suits(parsers: dict[str, type[OutputParser]], template: str) -> None:
    assert {name for name, parser in parsers.items() if parser.matches_template(template)} == TEMPLATES[template]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
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
LISTED = {
    "granite": "<|tool_call|>[%s]", "hunyuan_a13b": "<tool_calls>[%s]</tool_calls>",
    "nemotron_json": "<TOOLCALL>[%s]</TOOLCALL>",
}  # fmt: skip
WRITTEN |= {name: form % '{"name": "%s", "arguments": %s}' for name, form in LISTED.items()}
WRITTEN |= {
    "ernie45": WRITTEN["hermes"],
    "interns1": '<|action_start|> <|plugin|>\n{"name": "%s", "parameters": %s}\n<|action_end|>',
    "deepseekv31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.%s:0<|tool_call_argument_begin|>%s"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "gemma4": "<|tool_call>call:%s%s<tool_call|>",
    "lfm2": "<|tool_call_start|>[%s(%s)]<|tool_call_end|>",
    "qwen3_coder": "<tool_call>\n<function=%s>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=%s>\n<parameter=a>%s</parameter>\n</function>\n</seed:tool_call>",
    "minimax-m2": '<minimax:tool_call>\n<invoke name="%s">\n<parameter name="a">%s</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "step3": '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="%s">\n'
    '<steptml:parameter name="a">%s</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>',
    "glm45": "<tool_call>%s\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
    "glm47": "<tool_call>%s<arg_key>a</arg_key><arg_value>%s</arg_value></tool_call>",
    "hunyuan": "<tool_calls>\n<tool_call>%s<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n"
    "</tool_call>\n</tool_calls>",
    "deepseekv32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="%s">\n'
    '<｜DSML｜parameter name="a" string="false">%s</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
}
WRITTEN["deepseekv4"] = WRITTEN["deepseekv32"].replace("function_calls", "tool_calls")
PLAIN = ("qwen3_coder", "seed_oss", "minimax-m2", "step3", "glm45", "glm47", "hunyuan", "deepseekv32", "deepseekv4")
"""Formats in which arguments stand one by one."""
TWICE = {
    "hermes": "{0}\n{0}",
    "llama3": "{0}; {0}",
    "mistral": '[{{"name": "f", "arguments": {{"a": 1}}}}, {{"name": "f", "arguments": {{"a": 1}}}}]',
    "pythonic": "[f(a=1), f(a=1)]",
    "gpt-oss": "{0}<|call|><|start|>assistant{0}",
    "ernie45": "{0}\n{0}",
    "interns1": "{0}\n{0}",
    "qwen3_coder": "{0}\n{0}",
    "seed_oss": "{0}\n{0}",
    "glm45": "{0}\n{0}",
    "glm47": "{0}{0}",
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
    good, bad = ARGUMENTS, '{"a": "x"}'
    if name in ("pythonic", "lfm2"):
        good, bad = "a=1", 'a="x"'
    if name in PLAIN:
        good, bad = "1", '"x"'
    assert accepts(parser, form % ("f", good))
    assert read(parser, form % ("g", good), functions={"g": SCHEMA}) == [(0, "g", ARGUMENTS)]
    assert not accepts(parser, form % ("h", good))
    assert not accepts(parser, form % ("f", bad))
    assert not accepts(parser, "Hello")
    assert not accepts(parser, "")


@pytest.mark.parametrize("name", TWICE)
def test_several_calls_only_where_they_are_wanted(
    parsers: dict[str, type[OutputParser]], read: Any, accepts: Callable[..., bool], name: str
) -> None:
    text = TWICE[name].format(WRITTEN[name] % ("f", "1" if name in PLAIN else ARGUMENTS))
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
    for name in NAMES:
        for required in (True, False):
            assert parsers[name].structure({"f": SCHEMA}, required=required, parallel=True) is not None
    for name in ("pythonic", "gpt-oss", "lfm2", "gemma4", "kimi_k2", *PLAIN):
        with pytest.raises(ConstraintError, match="'get it' cannot be called"):
            parsers[name].structure({"get it": SCHEMA}, required=True, parallel=True)
