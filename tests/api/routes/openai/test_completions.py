"""Tests of ``/v1/completions``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug_api.text.text_engine import TextEngine
from tests.api.letters import Unused

PATH = "/v1/completions"
FRANCE = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}


def test_answer(app: Any) -> None:
    completion = app.answer(PATH, {**FRANCE, "logprobs": 1, "echo": True})
    (choice,) = completion["choices"]
    assert choice["text"].startswith("The capital of France is Paris")
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"][:2] == [0, 3]
    assert (completion["object"], completion["usage"]["prompt_tokens"]) == ("text_completion", 5)


def test_stream_of_two_prompts(app: Any) -> None:
    whole = app.answer(PATH, {**FRANCE, "prompt": ["one", "two"], "echo": True})["choices"]
    response = app.post(PATH, {**FRANCE, "prompt": ["one", "two"], "echo": True, "stream": True})
    texts = ["", ""]
    for event in response.text.split("\n\n")[:-2]:
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]
    assert [text[:3] for text in texts] == ["one", "two"]


def test_stop_patterns_are_compiled_once_for_all_prompts(app: Any, compiled_patterns: list[Any]) -> None:
    app.answer(PATH, {**FRANCE, "prompt": ["one", "two", "three"], "stop_regex": ["x{40}", "y"], "n": 2})
    assert compiled_patterns == [("x{40}", "y")]


@pytest.mark.parametrize(
    ("field", "value"),
    [("allowed_token_ids", [*range(4096)]), ("logit_bias", {str(token): 1.0 for token in range(2000)})],
)
def test_tokens_for_every_sequence_are_limited_together(app: Any, field: str, value: Any) -> None:
    body = {"prompt": [[5]] * 512, "max_tokens": 1, field: value}
    error = app.refusal(PATH, {**body, "n": 2})
    assert error["param"] == field and "the maximum is 16777216" in error["message"]
    assert len(app.answer(PATH, {**body, "prompt": [[5]] * 8})["choices"]) == 8


def test_refusals(app: Any) -> None:
    assert app.refusal(PATH, {**FRANCE, "prompt": ""})["message"].endswith("Prompt cannot be empty")
    assert app.refusal(PATH, {**FRANCE, "regex": "a", "ebnf": "a"})["param"] == "ebnf"
    assert app.is_whole()


async def test_too_many_sequences_are_refused_before_any_is_tokenised(scripted_client: Any) -> None:
    client = scripted_client(tokenizer=Unused(), max_sequences_per_request=8)
    refused = await client.post(PATH, json={**FRANCE, "prompt": ["a"] * 5, "n": 2})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


def test_token_ids_need_no_tokenizer(apps: Any) -> None:
    app = apps(skip_tokenizer_init=True)
    answer = app.post(PATH, {"prompt": [1, 2, 3], "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.fixture(scope="module")
def tokens_only(apps: Callable[..., Any]) -> Any:
    """An application without a tokenizer."""
    return apps(skip_tokenizer_init=True)


def test_meta_info_needs_no_tokenizer(tokens_only: Any) -> None:
    body = {"prompt": [80, 81], "max_tokens": 3, "ignore_eos": True, "return_meta_info": True}
    choice = tokens_only.answer(PATH, body)["choices"][0]
    assert (choice["text"], choice["meta_info"]["completion_tokens"]) == ("", 3)
    last = tokens_only.post(PATH, {**body, "stream": True}).text
    assert '"completion_tokens":3' in last and "error" not in last


@pytest.mark.parametrize(("field", "value"), [("logprobs", 0), ("logprobs", 2), ("prompt_logprobs", 0)])
def test_log_probabilities_without_a_tokenizer_are_refused_before_anything_is_generated(
    tokens_only: Any, field: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextEngine, "stream", None)
    error = tokens_only.refusal(PATH, {"prompt": [80, 81], "max_tokens": 3, field: value})
    assert error["param"] == field and "--skip-tokenizer-init" in error["message"]


def test_each_prompt_may_have_an_id_a_salt_and_an_adapter(app: Any) -> None:
    body = {"prompt": ["Once", "Twice"], "max_tokens": 2, "rid": ["a", "b"], "lora_path": [None, None]}
    answer = app.answer("/v1/completions", {**body, "cache_salt": ["x", "y"], "extra_key": ["1", None]})
    assert answer["id"] == "a" and len(answer["choices"]) == 2
    for field in ("rid", "cache_salt", "extra_key", "lora_path"):
        error = app.refusal("/v1/completions", {**body, field: ["x"]})
        assert error["message"] == f"{field} has 1 entries for 2 prompts" and error["param"] == field
    assert app.refusal("/v1/completions", {**body, "lora_path": [None, "z"]})["param"] == "lora_path"


async def test_ids_and_salts_are_those_of_their_prompts(scripted_client: Any, scripted: Any) -> None:
    body = {"prompt": ["One", "Two"], "rid": ["a", ""], "cache_salt": ["x", None], "n": 2}
    answer = await scripted_client().post("/v1/completions", json=body)
    assert answer.status_code == 200 and answer.json()["id"] == "a"
    first, second = scripted.requests[:2], scripted.requests[2:]
    assert [request.id for request in first] == ["a-0", "a-1"] and len(second[0].id) > 30
    assert [request.salt for request in (*first, *second)] == ["x", "x", "", ""]
