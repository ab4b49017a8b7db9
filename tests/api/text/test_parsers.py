"""Tests of the choice of output parsers of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import PluginError, Plugins
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.text.parsers import Parsers, load_parsers

HERMES = '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
OWN = """
@hookimpl
def register_output_parsers():
    yield ToolParserSpec(name="zz-own", target=f"{__name__}:Own")

def __getattr__(name):
    if name != "Own":
        raise AttributeError(name)
    from sglang_plug import OutputParser
    class Own(OutputParser):
        def feed(self, text): return []
        def finish(self): return []
        @classmethod
        def matches_template(cls, template): ANSWER
    return Own
"""


class Templated:
    """A tokenizer with a chat template."""

    def __init__(self, template: str | None) -> None:
        self.template = template

    def chat_template(self, *, tools: bool = False) -> str | None:
        return self.template if tools else "another one"


def load(plugins: Plugins, template: str | None = HERMES, **options: Any) -> Parsers:
    tokenizer: Any = Templated(template)
    return load_parsers(ServerConfig(**options), plugins, tokenizer)


def test_auto_takes_what_suits_the_template_for_tools(
    discover: Callable[..., Plugins], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    parsers = load(discover())
    assert "'hermes'" in caplog.text  # the name of the parser, not an alias
    assert parsers.for_tools().__name__ == "Hermes"
    assert parsers.reasoning is None


@pytest.mark.parametrize(("template", "words"), [("plain", "no parser suits"), (None, "no chat template")])
def test_auto_without_a_suitable_one(discover: Callable[..., Plugins], template: str | None, words: str) -> None:
    parsers = load(discover(), template)
    with pytest.raises(ApiError, match=words):
        parsers.for_tools()
    assert load_parsers(ServerConfig(), discover(), None).tools is None


def test_parsers_of_others_are_asked_first(discover: Callable[..., Plugins], plugin_file: Any) -> None:
    plugins = discover(plugin_file("own", OWN.replace("ANSWER", "return 'tool_call' in template")))
    assert load(plugins).for_tools().__name__ == "Own"
    assert load(plugins, '"[TOOL_CALLS]"').for_tools().__name__ == "Mistral"


def test_a_parser_that_fails_to_answer_is_passed_over(
    discover: Callable[..., Plugins], plugin_file: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = discover(plugin_file("own", OWN.replace("ANSWER", "raise RuntimeError('broken')")))
    assert load(plugins).for_tools().__name__ == "Hermes"
    assert "'zz-own'" in caplog.text and "broken" in caplog.text


def test_named_parsers(discover: Callable[..., Plugins]) -> None:
    parsers = load(discover(), None, tool_call_parser="pythonic", reasoning_parser="qwen3")
    assert parsers.for_tools().__name__ == "Pythonic"
    assert parsers.reasoning is not None and parsers.reasoning.__name__ == "Thinking"
    assert parsers.by_name("reasoning-parser", "deepseek-r1", "x").__name__ == "OpenThinking"
    with pytest.raises(ApiError, match="no tool-parser named 'qwen3'") as caught:
        parsers.by_name("tool-parser", "qwen3", "tool_call_parser")
    assert caught.value.param == "tool_call_parser"
    with pytest.raises(ApiError, match="no tool-parser"):
        Parsers().by_name("tool-parser", "hermes", "x")
    with pytest.raises(PluginError, match="did you mean 'qwen25'"):
        load(discover(), tool_call_parser="qwen2")
