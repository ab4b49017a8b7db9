"""The names of ``sglang.lang`` lead to the frontend language's own objects."""

from __future__ import annotations

from typing import Any

import pytest

import sglang_plug_lang
from sglang_plug_lang import LanguageError, ir, program
from sglang_plug_lang.lang import api, chat_template, choices, global_config, interpreter, tracer
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


def test_expressions_that_are_created_as_sglangs(backend: Any) -> None:
    x = sglang_plug_lang.gen("x")
    assert names.SglSeparateReasoning("qwen3", expr=x) == sglang_plug_lang.separate_reasoning(x, "qwen3")
    with pytest.raises(LanguageError, match=r"videos are not supported, so 'cat\.mp4'"):
        names.SglVideo("cat.mp4", 8)
    with pytest.raises(LanguageError, match="cannot carry out Fork"):
        sglang_plug_lang.function(lambda s: s.__iadd__(names.SglFork(2))).run().text()

    @sglang_plug_lang.function
    def program(s: Any, question: str) -> None:
        s += "Q: " + question
        s += names.SglCommitLazy() + x
        forks = s.fork(2)
        forks += s["x"]
        s += names.SglConcateAndAppend(forks[:])

    trace = tracer.trace_program(program, {})
    kinds = [type(node) for node in trace.nodes]
    assert kinds[1:4] == [names.SglArgument, names.SglCommitLazy, names.SglGen]
    assert kinds[4:] == [names.SglFork, names.SglConcateAndAppend]
    assert trace.nodes[4] == names.SglFork(2)
    assert [type(node) for node in trace.forks[1].nodes] == [names.SglGetForkItem, names.SglVariable]
    assert trace.forks[1].nodes[1] == names.SglVariable("x", source=x)
    assert tracer.extract_prefix_by_tracing(program, backend) == "Q: "
    assert program.run(question="why?").text() == "Q: why?<1><1><1>"


def test_a_registered_template(backend: Any) -> None:
    pairs = {"system": ("<s>", "</s>"), "user": ("<u>", "</u>"), "assistant": ("<a>", "</a>")}
    template = chat_template.ChatTemplate(
        name="of-this-test",
        default_system_prompt="Be kind.",
        role_prefix_and_suffix=pairs,
        stop_str=("</a>",),
        style=chat_template.ChatTemplateStyle.LLAMA2,
    )
    with pytest.raises(ValueError, match="unknown chat template 'of-this-test'"):
        chat_template.get_chat_template("of-this-test")
    chat_template.register_chat_template(template)
    assert chat_template.get_chat_template("of-this-test") is template
    chat_template.register_chat_template_matching_function(
        lambda path: "of-this-test" if path.endswith("of-this-test-7b") else None
    )
    assert chat_template.get_chat_template_by_model_path("me/of-this-test-7b") is template
    assert chat_template.get_chat_template_by_model_path("Qwen/Qwen3-8B").name == "qwen"
    backend.chat_template = template
    program = sglang_plug_lang.function(lambda s: s.__iadd__(sglang_plug_lang.user("Hi")))
    assert program.run().text() == "<u><s>Be kind.</s>Hi</u>"
    plain = chat_template.ChatTemplate("of-this-test", None, pairs)
    assert (plain.before("user", "system"), plain.before("system", None)) == ("<u>", "<s>")


def test_methods_to_choose_are_classes_too() -> None:
    for kind in (
        choices.TokenLengthNormalized,
        choices.GreedyTokenSelection,
        choices.UnconditionalLikelihoodNormalized,
    ):
        assert isinstance(kind(), choices.ChoicesSamplingMethod)
    assert choices.GreedyTokenSelection() == choices.greedy_token_selection
    assert isinstance(choices.token_length_normalized, choices.TokenLengthNormalized)


def test_an_engine_comes_from_another_package() -> None:
    with pytest.raises(ImportError, match=r"sglang_plug_api\.Engine"):
        from sglang_plug_lang.lang.api import Engine  # noqa: F401
    assert not hasattr(api, "nonsense")


def test_backends_templates_and_choices() -> None:
    assert runtime_endpoint.RuntimeEndpoint is sglang_plug_lang.RuntimeEndpoint
    assert openai.OpenAI is sglang_plug_lang.OpenAI
    assert base_backend.BaseBackend is sglang_plug_lang.Backend
    assert chat_template.get_chat_template("chatml").name == "chatml"
    assert chat_template.get_chat_template_by_model_path("Qwen/Qwen2.5-7B-Instruct").name == "qwen"
    assert choices.token_length_normalized is sglang_plug_lang.token_length_normalized
    assert interpreter.ProgramState is sglang_plug_lang.ProgramState
    assert global_config.global_config is sglang_plug_lang.global_config
