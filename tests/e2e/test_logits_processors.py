"""A third party's logits processors, through real clients on every generation route and in the offline engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from sglang_plug import PluginOptions
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.offline.engine import Engine
from tests import steering_plugin

from .servers import until

FILE = str(steering_plugin.__file__)
FLAGS = ("--plugin", FILE, "--speculative-algorithm", "NGRAM", "--set", "ngram.min_match=1")
TOKEN = 321
STEER = {"steer": {"token": TOKEN}}
MESSAGES: list[Any] = [{"role": "user", "content": "Where is Paris?"}]
PARAMS = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
WINDOW = {**PARAMS, "max_new_tokens": 40, "no_repeat_window": 5}
LOOP = {**PARAMS, "max_new_tokens": 40, "logit_bias": {"50": 100}}


@pytest.fixture(scope="module")
def steering(module_launcher: Any) -> Any:
    return module_launcher.in_thread(*FLAGS)


@pytest.fixture(scope="module")
def client(steering: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{steering.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def word(steering: Any) -> str:
    """Return the text of ``TOKEN``."""
    return str(steering.post("/detokenize", {"tokens": [TOKEN]}).json()["text"])


def test_openai_s_client_sends_the_fields_as_extra_body(client: OpenAI, word: str) -> None:
    more: dict[str, Any] = {"model": "demo", "temperature": 0, "extra_body": {**STEER, "ignore_eos": True}}
    chat = client.chat.completions.create(messages=MESSAGES, max_tokens=4, n=2, seed=1, **more)
    assert [choice.message.content for choice in chat.choices] == [word * 4] * 2
    completion = client.completions.create(prompt="a", max_tokens=4, **more)
    assert completion.choices[0].text == word * 4
    response = client.responses.create(input="Hello", max_output_tokens=4, **more)
    assert response.output_text == word * 4


def test_streams_are_steered_too(client: OpenAI, steering: Any, word: str) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=4, stream=True, n=2, extra_body={**STEER, "steer_until": 2}
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(text.startswith(word * 2) for text in texts.values())
    events = steering.events("/generate", {"text": "a", "sampling_params": {**PARAMS, **STEER}})
    assert events[-1]["output_ids"] == [TOKEN] * 12


def test_generate_takes_them_as_sampling_parameters(steering: Any, server: Any) -> None:
    texts, kinds = ["a", "Once upon a time", "b", "The"], [WINDOW, PARAMS, {**PARAMS, **STEER}, LOOP]
    answers = steering.generate({"text": texts, "sampling_params": kinds})
    window = answers[0]["output_ids"]
    assert all(token not in window[max(0, index - 5) : index] for index, token in enumerate(window))
    assert answers[2]["output_ids"] == [TOKEN] * 12
    plain = [server.generate({"text": texts[index], "sampling_params": kinds[index]}) for index in (1, 3)]
    assert [answers[index]["output_ids"] for index in (1, 3)] == [answer["output_ids"] for answer in plain]
    alone = [
        steering.generate({"text": text, "sampling_params": kind}) for text, kind in zip(texts, kinds, strict=True)
    ]
    assert [answer["output_ids"] for answer in alone] == [answer["output_ids"] for answer in answers]
    assert "spec_verify_ct" in alone[2]["meta_info"], "rows of a processor that needs no tokens have drafts"
    assert "spec_verify_ct" not in alone[0]["meta_info"]


def test_batches_take_them(client: OpenAI, steering: Any, word: str) -> None:
    body = {"model": "demo", "messages": MESSAGES, "max_tokens": 3, **STEER}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    wrong = {**line, "custom_id": "2", "body": {**body, "steer": 3}}
    text = "\n".join(map(json.dumps, (line, wrong))).encode()
    file = client.files.create(file=("lines.jsonl", text), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"), "the batch is done")
    done = client.batches.retrieve(batch.id)
    assert done.output_file_id is not None and done.error_file_id is not None
    answer = json.loads(client.files.content(done.output_file_id).text)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == word * 3
    error = json.loads(client.files.content(done.error_file_id).text)
    assert error["response"]["body"]["error"]["param"] == "steer"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"steer": {"token": "x"}}, "steer.token", "steer.token must be an integer, not text"),
        ({"steer": {"token": True}}, "steer.token", "steer.token must be an integer, not true or false"),
        ({"steer": 5}, "steer", "steer must be an object or null, not an integer"),
        ({"steer": {}}, "steer.token", "steer.token is missing"),
        ({"steer": {"token": 3, "strenght": 2}}, "steer.strenght", "steer.strenght: there is no such field"),
        ({"steer": {"token": 3, "strength": -2}}, "steer", "steer: strength must be more than 0, got -2.0"),
        ({"steer": {"token": 1 << 40}}, "steer", f"steer: there is no token {1 << 40}"),
        ({"no_repeat_window": [1]}, "no_repeat_window", "no_repeat_window must be an integer or null, not a list"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    steering: Any, client: OpenAI, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(BadRequestError) as error:
        client.chat.completions.create(model="demo", messages=MESSAGES, extra_body=fields)
    assert (error.value.param, error.value.body["message"]) == (param, message)  # type: ignore[index]
    answer = steering.post("/generate", {"text": "a", "sampling_params": fields})
    assert answer.status_code == 400 and answer.json()["message"] == message
    assert answer.json()["param"] in (param, f"sampling_params.{param}")


def test_null_asks_for_nothing(steering: Any) -> None:
    params = {**PARAMS, "steer": None, "no_repeat_window": None}
    plain, same = (steering.generate({"text": "a", "sampling_params": fields}) for fields in (PARAMS, params))
    assert same["output_ids"] == plain["output_ids"]


def test_next_to_sampling_params_a_field_would_do_nothing(steering: Any) -> None:
    answer = steering.post("/generate", {"text": "a", **STEER})
    assert answer.json()["message"] == "'steer' would have no effect here: it belongs in sampling_params"


def test_without_the_plugin_its_fields_are_unknown(server: Any) -> None:
    answer = server.post("/generate", {"text": "a", "sampling_params": STEER})
    assert answer.json()["message"] == "there is no sampling parameter 'steer'"
    chat = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, **STEER})
    assert chat.status_code == 200


def test_a_failing_processor_ends_its_request_and_nothing_else(steering: Any) -> None:
    for _ in range(4):  # more than the steps that may fail one after the other
        answer = steering.post("/generate", {"text": "a", "sampling_params": {"steer": {"token": 14}}})
        assert answer.status_code == 500
    assert steering.generate({"text": "a", "sampling_params": {**PARAMS, **STEER}})["output_ids"] == [TOKEN] * 12
    steering.wait_whole()


def test_the_document_shows_the_fields(steering: Any) -> None:
    schemas = steering.get("/openapi.json").json()["components"]["schemas"]
    for body in ("ChatBody", "CompletionBody", "ResponsesBody", "SamplingBody"):
        properties = schemas[body]["properties"]
        assert {"$ref": "#/components/schemas/Steer"} in properties["steer"]["anyOf"]
        assert {"steer_until", "no_repeat_window", "logit_bias"} <= properties.keys()
    assert schemas["Steer"]["required"] == ["token"]
    table = steering.get("/plugins").json()
    assert {"steer", "window", "penalties"} <= {
        component["name"] for component in table["components"] if component["kind"] == "logits-processor"
    }


@pytest.fixture(scope="module")
def blocking(module_launcher: Any) -> Any:
    blocked = ("logits-processor:penalties", "logits-processor:logit-bias", "logits-processor:min-new-tokens")
    flags = [item for name in (*blocked, "logits-processor:steer") for item in ("--block-plugin", name)]
    defaults = json.dumps({"no_repeat_window": 1})
    return module_launcher.in_thread("--plugin", FILE, *flags, "--preferred-sampling-params", defaults)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"min_tokens": 2}, "min_tokens"),
        (STEER, "steer"),
    ],
)
def test_fields_of_a_blocked_processor_are_refused_by_name(blocking: Any, fields: dict[str, Any], param: str) -> None:
    for path, body in (("chat/completions", {"messages": MESSAGES}), ("completions", {"prompt": "a"})):
        answer = blocking.post(f"/v1/{path}", {"max_tokens": 5, **body, **fields})
        assert answer.status_code == 400, answer.text
        assert answer.json()["param"] == param
        assert "is blocked (--plugins, --block-plugin)" in answer.json()["message"]
        assert f"{param}: logits-processor '" in answer.json()["message"]


def test_what_asks_for_nothing_passes_a_blocked_processor(blocking: Any) -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}}
    answer = blocking.post(
        "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5, **neutral, "min_tokens": 0, "steer": None}
    )
    assert answer.status_code == 200


def test_the_operator_may_set_a_field_for_all(blocking: Any) -> None:
    tokens = blocking.generate({"text": "aaaa", "sampling_params": PARAMS})["output_ids"]
    assert all(token != other for token, other in zip(tokens, tokens[1:], strict=False))


def test_the_offline_engine_takes_them() -> None:
    options = PluginOptions(files=(FILE,))
    with Engine(max_total_tokens=512, plugins=options, log_level="warning") as engine:
        answer = engine.generate("Hello", {**PARAMS, **STEER})
        assert isinstance(answer, dict) and answer["output_ids"] == [TOKEN] * 12
        *_, last = engine.generate("Hello", {**PARAMS, **STEER, "steer_until": 3}, stream=True)
        assert last["output_ids"][:3] == [TOKEN] * 3 and set(last["output_ids"]) != {TOKEN}
        with pytest.raises(ApiError, match="steer.token must be an integer, not text") as error:
            engine.generate("Hello", {"steer": {"token": "3"}})
        assert error.value.param == "sampling_params.steer.token"
