"""Tests of a thinking budget with real servers and clients: three formats of reasoning, every generation route."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.servers import Launcher, Server

from . import scripted_output

ROOT = Path(__file__).parents[2]
FOLDER = str(ROOT / "plugins")
DEMO = ROOT / "builtin_models" / "sglang_plug_models" / "demo" / "sglang-plug-demo"
SCRIPT = str(scripted_output.__file__)
PLUGINS = ("--plugins-dir", FOLDER, "--plugin", SCRIPT)
THOUGHTS = "I wonder what the best answer is: perhaps a <b>bold</b> one, or 1 </ 2, or a list of all of them."
"""Reasoning that contains prefixes of the end markers."""
OPENINGS = {"deepseek-r1": "", "gpt-oss": "<|channel|>analysis<|message|>", "qwen3": "<think>"}
ENDS = {"deepseek-r1": "</think>", "gpt-oss": "<|end|><|start|>assistant", "qwen3": "</think>"}
FINAL = {"gpt-oss": "<|channel|>final<|message|>"}
"""Text that begins the answer after the end of the reasoning, by parser."""
TOOL_PARSERS = {"gpt-oss": "gpt-oss"}
SPECIAL = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>", "<|constrain|>")
"""The special tokens of gpt-oss, for which unused special tokens of the demo model are renamed."""
PARSERS = sorted(ENDS)
"""Parsers of three formats: reasoning that the prompt opens, reasoning that the model opens, and channels."""
MESSAGES: list[Any] = [{"role": "user", "content": "Where is Paris?"}]
NAMES = ["first_name", "favourite_colour"]
SCHEMA = {"type": "object", "properties": {name: {"enum": ["red", "green"]} for name in NAMES}, "required": NAMES}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOLS: Any = [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}]
BUDGETS = (0, 1, 2, 7, 20, 31)


@dataclass(frozen=True)
class Thinker:
    """A server whose model writes a script of the test."""

    parser: str
    server: Server
    client: OpenAI

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of ``text``."""
        body = {"prompt": text, "add_special_tokens": False}
        tokens: list[int] = self.server.post("/tokenize", body).json()["tokens"]
        return tokens

    def count(self, text: str) -> int:
        """Return the number of tokens of ``text``."""
        return len(self.tokens(text)) if text else 0

    def script(self, thoughts: str = THOUGHTS, *, opened: bool = True, answer: str = "") -> dict[str, Any]:
        """Return the request field for an output with reasoning."""
        return {"say": self.tokens((OPENINGS[self.parser] if opened else "") + thoughts + answer)}

    def ask(self, budget: int | None, **fields: Any) -> Any:
        """Return a chat completion of a model that never ends its reasoning, unless ``extra`` says otherwise."""
        extra = {"thinking_budget": budget, **self.script(), **fields.pop("extra", {})}
        options = {"temperature": 0, "max_tokens": 150, **fields}
        return self.client.chat.completions.create(model="demo", messages=MESSAGES, extra_body=extra, **options)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("servers"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo model with the special tokens of gpt-oss."""
    folder = tmp_path_factory.mktemp("model") / "channels"
    shutil.copytree(DEMO, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        for number, token in enumerate(SPECIAL):
            text = text.replace(f"<|reserved_{number}|>", token)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", params=PARSERS)
def thinker(request: pytest.FixtureRequest, launcher: Launcher, channels: Path) -> Iterator[Thinker]:
    parser: str = request.param
    tools = TOOL_PARSERS.get(parser, "hermes")
    flags = ["--reasoning-parser", parser, "--tool-call-parser", tools]
    flags += ["--model-path", str(channels)] if parser in TOOL_PARSERS else []
    server = launcher.in_thread(*PLUGINS, *flags, "--speculative-algorithm", "NGRAM", "--max-total-tokens", "4096")
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield Thinker(parser, server, client)
    server.close()


@pytest.mark.parametrize("budget", BUDGETS)
def test_reasoning_ends_after_the_budget(thinker: Thinker, budget: int) -> None:
    answer = thinker.ask(budget)
    choice, message = answer.choices[0], answer.choices[0].message
    reasoning = message.reasoning_content or ""
    assert THOUGHTS.strip().startswith(reasoning.rstrip("</"))
    assert bool(reasoning) == (budget > 0)
    assert answer.usage.completion_tokens_details.reasoning_tokens == thinker.count(reasoning) <= budget
    assert len(message.content) > 20 and not any(mark in message.content for mark in ("think>", "analysis"))
    assert choice.finish_reason in ("stop", "length")


def test_streams_end_reasoning_at_the_same_position(thinker: Thinker) -> None:
    whole = thinker.ask(9).choices[0].message
    deltas = [chunk.choices[0].delta for chunk in thinker.ask(9, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == whole.content
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == whole.reasoning_content
    assert sum(map(bool, thoughts)) > 1, "it comes as it is generated"


def test_an_end_that_the_model_writes_itself_is_not_written_twice(thinker: Thinker) -> None:
    thoughts, final = "One.", FINAL.get(thinker.parser, "")
    end = ENDS[thinker.parser] + final
    need = thinker.count(thoughts)
    for budget in range(need, need + thinker.count(end) + 2):
        script = thinker.script(thoughts, answer=f"{end}Two.")
        message = thinker.ask(budget, extra=script, max_tokens=len(script["say"])).choices[0].message
        assert (message.reasoning_content, message.content) == ("One.", "Two."), budget


def test_without_a_budget_and_with_a_large_one_nothing_changes(thinker: Thinker) -> None:
    plain = thinker.ask(None).choices[0].message
    assert plain.reasoning_content.startswith(THOUGHTS.strip())
    for budget in (140, 150, 1 << 62):
        message = thinker.ask(budget).choices[0].message
        assert (message.reasoning_content, message.content) == (plain.reasoning_content, plain.content)


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_grammar_begins_right_after_the_end(thinker: Thinker, budget: int) -> None:
    answer = thinker.ask(budget, response_format=FORMAT, max_tokens=250, extra=_forced_final(thinker, budget))
    message = answer.choices[0].message
    assert list(json.loads(message.content)) == NAMES
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens_details.reasoning_tokens <= budget


def _forced_final(thinker: Thinker, budget: int) -> dict[str, Any]:
    """Return a script that begins the final channel where the reasoning of gpt-oss ends; other parsers need none."""
    opening, end = OPENINGS[thinker.parser], ENDS[thinker.parser]
    if thinker.parser not in FINAL:
        return thinker.script()
    parts = [thinker.tokens(text) for text in (opening, THOUGHTS, end, FINAL[thinker.parser])]
    return {"say": parts[0] + parts[1][:budget] + parts[2] + parts[3]}


@pytest.mark.parametrize("budget", [0, 7])
def test_a_required_call_comes_right_after_the_end(thinker: Thinker, budget: int) -> None:
    answer = thinker.ask(budget, tools=TOOLS, tool_choice="required", max_tokens=250)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "paint" and list(json.loads(call.function.arguments)) == NAMES
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens_details.reasoning_tokens <= budget


def test_each_of_several_outputs_has_the_whole_budget(thinker: Thinker) -> None:
    answer = thinker.ask(6, n=4, temperature=1.2, seed=3, logprobs=True)
    assert len(answer.choices) == 4 and len({choice.message.content for choice in answer.choices}) > 1
    for choice in answer.choices:
        assert thinker.count(choice.message.reasoning_content) <= 6 and choice.message.content
    reported = sum(len(choice.logprobs.content) for choice in answer.choices)
    assert reported == answer.usage.completion_tokens


def test_budgets_in_one_batch_are_kept_apart(thinker: Thinker) -> None:
    prompts = ["Once upon a time"] * 8
    params = [
        {"temperature": 0, "max_new_tokens": 60 + index, "thinking_budget": budget, **thinker.script()}
        for index, budget in enumerate([None, 0, 1, 5, 11, 30, 200, 5])
    ]
    together = thinker.server.generate({"text": prompts, "sampling_params": params})
    alone = [thinker.server.generate({"text": prompts[0], "sampling_params": sampling}) for sampling in params]
    assert [answer["output_ids"] for answer in together] == [answer["output_ids"] for answer in alone]
    thinker.server.wait_whole()


def test_every_route_takes_it(thinker: Thinker) -> None:
    parser, budget = thinker.parser, 5
    extra = {"thinking_budget": budget, **thinker.script()}
    inside = thinker.tokens(THOUGHTS)[:budget]
    expected = thinker.tokens(OPENINGS[parser]) + inside + thinker.tokens(ENDS[parser])
    text = thinker.server.post("/detokenize", {"tokens": expected}).json()["text"]
    options: dict[str, Any] = {"model": "demo", "temperature": 0, "extra_body": extra}
    assert thinker.client.completions.create(prompt="Hm", max_tokens=60, **options).choices[0].text.startswith(text)
    params = {"temperature": 0, "max_new_tokens": 60, **extra}
    assert thinker.server.generate({"text": "Hm", "sampling_params": params})["text"].startswith(text)
    response = thinker.client.responses.create(input="Hello", max_output_tokens=60, **options)
    assert response.usage is not None and response.output_text
    assert response.usage.output_tokens_details.reasoning_tokens <= budget
    (thoughts,) = [item for item in response.output if item.type == "reasoning"]
    assert thoughts.content and THOUGHTS.strip().startswith(thoughts.content[0].text)


def test_it_has_no_effect_on_outputs_without_reasoning(thinker: Thinker) -> None:
    for more in ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"thinking": False}}):
        plain, same = (thinker.ask(budget, extra={**more, "say": None}, max_tokens=20) for budget in (None, 0))
        assert plain.choices[0].message == same.choices[0].message
    body = {"prompt": "a", "max_tokens": 20, "regex": "[a-z]{12}", "temperature": 0}
    plain, same = (
        thinker.server.post("/v1/completions", {**body, **extra}).json()["choices"][0]["text"]
        for extra in ({}, {"thinking_budget": 3})
    )
    assert plain == same and len(plain) == 12, "constraints apply from the first token on, where no template is used"


def test_stop_strings_and_stop_tokens_still_end_the_output(thinker: Thinker) -> None:
    choice = thinker.ask(7, stop=[ENDS[thinker.parser]]).choices[0]
    assert choice.finish_reason == "stop" and choice.message.content == ""
    end = thinker.tokens(ENDS[thinker.parser])[0]
    choice = thinker.ask(7, extra={"stop_token_ids": [end]}).choices[0]
    assert (choice.finish_reason, choice.matched_stop) == ("stop", end)
    with pytest.raises(BadRequestError, match="ends with the stop token") as error:
        thinker.ask(7, extra={"stop_token_ids": [end]}, response_format=FORMAT)
    assert error.value.param == "thinking_budget"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "thinking_budget must be at least 0, got -1"),
        ("5", "thinking_budget must be an integer or null, not text"),
        (True, "thinking_budget must be an integer or null, not true or false"),
        (2.5, "thinking_budget must be an integer or null, not a number"),
        ({}, "thinking_budget must be an integer or null, not an object"),
        (1 << 70, "thinking_budget: a number does not fit 64 bits"),
    ],
)
def test_a_wrong_value_is_refused_by_name(thinker: Thinker, value: Any, message: str) -> None:
    with pytest.raises(BadRequestError) as error:
        thinker.ask(value)
    assert (error.value.param, error.value.body["message"]) == ("thinking_budget", message)  # type: ignore[index]


def test_a_continued_message_is_refused(thinker: Thinker) -> None:
    body = {
        "messages": [*MESSAGES, {"role": "assistant", "content": "<think>Paris is"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "thinking_budget": 3,
    }
    answer: httpx.Response = thinker.server.post("/v1/chat/completions", body)
    assert answer.status_code == 400 and answer.json()["param"] == "thinking_budget"


def test_a_server_without_a_reasoning_parser_refuses_it(launcher: Launcher) -> None:
    server = launcher.in_thread(*PLUGINS, "--max-total-tokens", "1024")
    chat, params = {"messages": MESSAGES, "max_tokens": 8}, {"max_new_tokens": 8, "thinking_budget": 3}
    for path, body in (
        ("/v1/chat/completions", {**chat, "thinking_budget": 3}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 8, "thinking_budget": 3}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 16, "thinking_budget": 3}),
        ("/generate", {"text": "a", "sampling_params": params}),
    ):
        answer = server.post(path, body)
        assert answer.status_code == 400, path
        assert "start it with --reasoning-parser" in answer.text and "thinking_budget" in answer.text
    assert server.post("/v1/chat/completions", chat).status_code == 200
    server.close()
