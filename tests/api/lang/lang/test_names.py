"""The names of ``sglang.lang`` lead to the frontend language's own objects."""

from __future__ import annotations

import sglang_plug_lang
from sglang_plug_lang import ir, program
from sglang_plug_lang.lang import api, chat_template, choices, global_config, interpreter
from sglang_plug_lang.lang import ir as names
from sglang_plug_lang.lang.backend import base_backend, openai, runtime_endpoint


def test_functions_of_programs() -> None:
    assert {name: getattr(api, name) for name in api.__all__} == {
        name: getattr(sglang_plug_lang, name) for name in api.__all__
    }


def test_expressions_under_their_names() -> None:
    assert isinstance("a" + sglang_plug_lang.gen("x"), names.SglExprList)
    assert isinstance(sglang_plug_lang.gen("x"), names.SglGen)
    assert isinstance(sglang_plug_lang.select("x", ["a"]), names.SglSelect)
    assert isinstance(sglang_plug_lang.user_begin(), names.SglRoleBegin)
    assert issubclass(names.SglConstantText, names.SglExpr)
    assert names.SglFunction is program.Function
    assert {names.REGEX_INT, names.REGEX_FLOAT, names.REGEX_STR, names.REGEX_BOOL} == set(ir.PATTERNS.values())


def test_backends_templates_and_choices() -> None:
    assert runtime_endpoint.RuntimeEndpoint is sglang_plug_lang.RuntimeEndpoint
    assert openai.OpenAI is sglang_plug_lang.OpenAI
    assert base_backend.BaseBackend is sglang_plug_lang.Backend
    assert chat_template.get_chat_template("chatml").name == "chatml"
    assert chat_template.get_chat_template_by_model_path("Qwen/Qwen2.5-7B-Instruct").name == "qwen"
    assert choices.token_length_normalized is sglang_plug_lang.token_length_normalized
    assert interpreter.ProgramState is sglang_plug_lang.ProgramState
    assert global_config.global_config is sglang_plug_lang.global_config
