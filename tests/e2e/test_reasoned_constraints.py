"""A constraint after reasoning, through a real server whose parser takes the first sentence for reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

PARSER = """
from __future__ import annotations

from sglang_plug import OutputParser, Reasoning, ReasoningMarks, ReasoningParserSpec, Text, hookimpl


@hookimpl
def register_output_parsers():
    yield ReasoningParserSpec(name="sentence", target=f"{__name__}:Sentence", summary="the first sentence is reasoning")


class Sentence(OutputParser):
    def __init__(self):
        self.thinks = True

    @classmethod
    def marks(cls, prompt, *, calls):
        return ReasoningMarks((".",))

    def feed(self, text):
        if not self.thinks:
            return [Text(text)] if text else []
        thought, mark, rest = text.partition(".")
        self.thinks = not mark
        return [*([Reasoning(thought + mark)] if thought + mark else []), *([Text(rest)] if rest else [])]

    def finish(self):
        return []
"""
NAMES = ["first_name", "country_of_birth", "favourite_colour"]
SCHEMA = {"type": "object", "properties": {name: {"enum": ["red", "green"]} for name in NAMES}, "required": NAMES}
ASK: Any = {
    "model": "x",
    "messages": [{"role": "user", "content": "Tell me about Anna."}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    "max_tokens": 200,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def client(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    file: Path = tmp_path_factory.mktemp("parser") / "sentence.py"
    file.write_text(PARSER)
    server = module_launcher.in_thread("--plugin", str(file), "--reasoning-parser", "sentence")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def test_reasoning_and_then_json(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK).choices[0]
    message: Any = choice.message
    assert choice.finish_reason == "stop"
    assert len(message.reasoning_content) > 1 and message.reasoning_content.endswith(".")
    assert list(json.loads(message.content)) == NAMES
    pieces = [chunk.choices[0].delta for chunk in client.chat.completions.create(**ASK, stream=True)]
    assert "".join(piece.content or "" for piece in pieces) == message.content
    assert "".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces) == message.reasoning_content


def test_reasoning_is_part_of_the_text_if_nobody_wants_it_apart(client: openai.OpenAI) -> None:
    message: Any = client.chat.completions.create(**ASK, extra_body={"separate_reasoning": False}).choices[0].message
    thought, _, answer = message.content.partition(".")
    assert thought and list(json.loads(answer)) == NAMES and message.reasoning_content is None


def test_without_reasoning_the_answer_comes_at_once(client: openai.OpenAI) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    message: Any = client.chat.completions.create(**ASK, extra_body=extra).choices[0].message
    assert list(json.loads(message.content)) == NAMES and message.reasoning_content is None


def test_an_output_that_is_cut_off_while_it_thinks(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**{**ASK, "max_tokens": 2}).choices[0]
    message: Any = choice.message
    assert (choice.finish_reason, message.content) == ("length", "")
    assert message.reasoning_content


def test_several_sampled_outputs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**{**ASK, "temperature": 1.3, "seed": 5, "n": 4, "logprobs": True})
    ended = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert ended
    for choice in ended:
        assert list(json.loads(choice.message.content or "")) == NAMES
    assert answer.usage is not None
    reported = sum(len((choice.logprobs and choice.logprobs.content) or ()) for choice in answer.choices)
    assert answer.usage.completion_tokens == reported
