"""Tests of the OpenAI backend: chat completions for messages, completions for text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_plug_lang import (
    BackendError,
    OpenAI,
    OpenAIEndpoint,
    assistant,
    function,
    gen,
    image,
    select,
    system,
    unconditional_likelihood_normalized,
    user,
)
from sglang_plug_lang.templates import template_named

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def chat(body: Any) -> tuple[int, Any]:
    answers = [f"{index}:{len(body['messages'])}" for index in range(body.get("n", 1))]
    choices = [
        {"index": index, "message": {"content": text}, "finish_reason": "stop"} for index, text in enumerate(answers)
    ]
    return 200, {"id": "1", "choices": choices[::-1], "usage": USAGE}


@pytest.fixture
def endpoint(answering: Any) -> Any:
    answering.answers["/v1/chat/completions"] = chat
    endpoint = OpenAIEndpoint(answering.url + "/v1", "some-model", "key")
    yield endpoint
    endpoint.close()


def bodies(answering: Any) -> list[Any]:
    return [body for _, body, _ in answering.requests]


def test_messages_go_to_chat_completions(endpoint: Any, answering: Any) -> None:
    @function
    def program(s: Any) -> None:
        s += system("S") + user("U") + assistant(gen("x", max_tokens=4, stop="y", top_k=2))
        s += user("V") + assistant(gen("z", n=2))

    state = program(backend=endpoint, temperature=0)
    assert (state["x"], state["z"]) == ("0:2", ["0:4", "1:4"])
    first, second = bodies(answering)
    assert first == {
        "model": "some-model",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        "max_completion_tokens": 4,
        "stop": "y",
        "top_k": 2,
        "temperature": 0,
    }
    assert second["messages"][2] == {"role": "assistant", "content": "0:2"}
    assert state.get_meta_info("x") == {"id": "1", "finish_reason": "stop", **USAGE}
    assert answering.requests[0][2]["Authorization"] == "Bearer key"


def test_an_answer_that_has_begun_is_continued(endpoint: Any, answering: Any) -> None:
    @function
    def program(s: Any) -> None:
        s += user("U") + assistant("I say " + gen("x"))

    assert program(backend=endpoint)["x"] == "0:2"
    (body,) = bodies(answering)
    assert body["messages"][-1] == {"role": "assistant", "content": "I say "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_images_schemas_and_log_probabilities(endpoint: Any, answering: Any) -> None:
    @function
    def program(s: Any) -> None:
        s += user(image(b"a") + "?")
        s += assistant(gen("x", json_schema='{"type": "object"}', return_logprob=True, top_logprobs_num=2))

    assert program(backend=endpoint).error() is None
    (body,) = bodies(answering)
    assert body["messages"][0]["content"][0]["image_url"]["url"] == "data:image/png;base64,YQ=="
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)


def test_streams(endpoint: Any, answering: Any) -> None:
    events = [
        {"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"id": "1", "choices": [{"index": 0, "delta": {"content": "he"}, "finish_reason": None}]},
        {"id": "1", "choices": [{"index": 0, "delta": {"content": "llo"}, "finish_reason": "stop"}]},
        {"id": "1", "choices": [], "usage": USAGE},
    ]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    answering.answers["/v1/chat/completions"] = (200, text)

    @function
    def program(s: Any) -> None:
        s += user("U") + assistant(gen("x"))

    state = program.run(backend=endpoint, stream=True)
    assert list(state.text_iter("x")) == ["he", "llo"]
    assert state.get_meta_info("x") == {"id": "1", "finish_reason": "stop", **USAGE}
    (body,) = bodies(answering)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_text_goes_to_completions(endpoint: Any, answering: Any) -> None:
    answering.answers["/v1/completions"] = (200, {"choices": [{"index": 0, "text": " b"}]})

    @function
    def program(s: Any) -> None:
        s += "a" + gen("x", max_tokens=3, return_logprob=True)

    assert program(backend=endpoint).text() == "a b"
    assert bodies(answering) == [{"model": "some-model", "prompt": "a", "max_tokens": 3, "logprobs": 1}]


def test_a_text_model_gets_the_template(answering: Any) -> None:
    answering.answers["/v1/completions"] = (200, {"choices": [{"index": 0, "text": "A"}]})
    endpoint = OpenAIEndpoint(answering.url + "/v1", "m", is_chat_model=False, chat_template_name="gemma-it")

    @function
    def program(s: Any) -> None:
        s += user("U") + assistant(gen("x"))

    assert program(backend=endpoint)["x"] == "A"
    (body,) = bodies(answering)
    assert body["prompt"] == "<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\n"
    assert body["stop"] == ["<end_of_turn>"]


def echoed(body: Any) -> tuple[int, Any]:
    """Answer with log-probabilities of the prompts' characters: later letters are likelier than earlier ones."""
    rows = [
        {
            "tokens": list(text),
            "token_logprobs": [None, *((ord(character) - 128) / (1 if len(text) > 2 else 4) for character in text[1:])],
            "text_offset": list(range(len(text))),
        }
        for text in body["prompt"]
    ]
    return 200, {"choices": [{"index": index, "text": "", "logprobs": row} for index, row in enumerate(rows)]}


def test_select_by_echo(endpoint: Any, answering: Any) -> None:
    answering.answers["/v1/completions"] = echoed

    @function
    def program(s: Any) -> None:
        s += "abc" + select("x", ["ab", "zz"])
        s += select("y", ["ab", "zz"], choices_method=unconditional_likelihood_normalized)

    state = program(backend=endpoint)
    assert (state["x"], state["y"]) == ("zz", "zz")
    first = bodies(answering)[0]
    assert (first["prompt"], first["max_tokens"], first["echo"], first["logprobs"]) == (["abcab", "abczz"], 0, True, 1)
    assert state.get_meta_info("x")["scores"] == pytest.approx([(97 + 98) / 2 - 128, 122 - 128])
    assert state.get_meta_info("y")["unconditional_token_logprobs"] == [[0.0, -7.5], [0.0, -1.5]]


def test_what_this_api_cannot_do(endpoint: Any, answering: Any) -> None:
    answering.answers["/v1/completions"] = (200, {"choices": [{"index": 0, "text": "a"}]})
    programs = {
        "is_chat_model=False": lambda s: s.__iadd__(assistant(select("x", ["a"]))),
        "inside of assistant(...)": lambda s: s.__iadd__(user(gen("x"))),
        "logprob_start_len": lambda s: s.__iadd__(assistant(gen("x", logprob_start_len=0))),
        "no log-probabilities": lambda s: s.__iadd__(select("x", ["a"])),
        "no images": lambda s: s.__iadd__(image(b"a") + gen("x")),
    }
    for message, program in programs.items():
        error = function(program)(backend=endpoint).error()
        assert isinstance(error, BackendError) and message in str(error)
    with pytest.raises(BackendError, match="cannot flush"):
        endpoint.flush_cache()


def test_models_are_the_information(endpoint: Any, answering: Any) -> None:
    answering.answers["/v1/models"] = (200, {"data": []})
    assert endpoint.get_server_info() == {"data": []}


@pytest.mark.parametrize(("model", "path"), [("gpt-4o", "/v1/chat/completions"), ("gpt-3.5-turbo-instruct", None)])
def test_models_of_openai_by_their_names(
    model: str, path: str | None, answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", answering.url + "/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    answering.answers["/v1/chat/completions"] = chat
    text = {"index": 0, "text": "continued", "finish_reason": "stop"}
    answering.answers["/v1/completions"] = lambda body: (200, {"id": "1", "choices": [text], "usage": USAGE})

    @function
    def program(s: Any) -> None:
        s += user("U") + assistant(gen("x"))

    endpoint = OpenAI(model)
    assert program(backend=endpoint)["x"] == ("continued" if path is None else "0:1")
    endpoint.close()
    ((requested, body, headers),) = answering.requests
    assert (requested, body["model"]) == (path or "/v1/completions", model)
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == "Bearer from-the-environment"


def test_what_a_caller_says_is_not_taken_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.invalid/v1")
    endpoint = OpenAI("gpt-4o", False, "chatml", base_url="http://here.invalid/v1", api_key="mine")
    assert (endpoint.is_chat_model, endpoint.model, endpoint.chat_template.name) == (False, "gpt-4o", "chatml")
    endpoint.close()


def test_tokens_are_counted(endpoint: Any, answering: Any) -> None:
    program = function(lambda s: s.__iadd__(user("U") + assistant(gen("x"))))
    for _ in range(2):
        program.run(backend=endpoint).sync()
    assert (endpoint.token_usage.prompt_tokens, endpoint.token_usage.completion_tokens) == (6, 4)


def test_a_template_as_an_object(answering: Any) -> None:
    template = template_named("vicuna")
    assert OpenAI("some", chat_template=template, base_url=answering.url).chat_template is template
