"""Request fields of a third party's step extensions, through real clients and in the offline engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from sglang_plug import PluginOptions, RequestError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.offline.engine import Engine
from tests import repetition_plugin

FILE = str(repetition_plugin.__file__)
TOKEN = 321
REPEATS = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True, "logit_bias": {str(TOKEN): 100}}
MESSAGES: list[Any] = [{"role": "user", "content": "Where is Paris?"}]


@pytest.fixture(scope="module")
def extended(module_launcher: Any) -> Any:
    return module_launcher.in_thread("--plugin", FILE)


@pytest.fixture(scope="module")
def client(extended: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{extended.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_s_client_sends_the_fields_as_extra_body(client: OpenAI) -> None:
    more: dict[str, Any] = {"model": "demo", "logit_bias": {str(TOKEN): 100}, "temperature": 0}
    fields = {"max_repeats": 3, "ignore_eos": True}
    chat = client.chat.completions.create(messages=MESSAGES, max_tokens=12, n=2, extra_body=fields, **more)
    assert [choice.finish_reason for choice in chat.choices] == ["stop"] * 2
    assert chat.usage is not None and chat.usage.completion_tokens == 2 * 4
    completion = client.completions.create(prompt="a", max_tokens=12, extra_body=fields, **more)
    assert completion.usage is not None and completion.usage.completion_tokens == 4
    *_, last = client.completions.create(prompt="a", max_tokens=12, stream=True, extra_body=fields, **more)
    assert last.choices[0].finish_reason == "stop"
    del more["logit_bias"]
    response = client.responses.create(
        input="a", max_output_tokens=12, extra_body={**fields, "logit_bias": {str(TOKEN): 100}}, **more
    )
    assert response.usage is not None and response.usage.output_tokens == 4


def test_generate_takes_them_as_sampling_parameters(extended: Any) -> None:
    kinds = [{**REPEATS, "max_repeats": 5}, REPEATS, {**REPEATS, "max_repeats": None}]
    answers = extended.generate({"text": ["a"] * 3, "sampling_params": kinds})
    assert [len(answer["output_ids"]) for answer in answers] == [6, 12, 12]
    started = time.monotonic()
    extended.generate({"text": "a", "sampling_params": {"max_new_tokens": 1, "start_after_ms": 300}})
    assert time.monotonic() - started >= 0.3
    extended.wait_whole()


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_repeats": "x"}, "max_repeats", "max_repeats must be an integer or null, not text"),
        ({"max_repeats": 0}, "max_repeats", "max_repeats must be at least 1, got 0"),
        ({"start_after_ms": -1}, "start_after_ms", "start_after_ms must not be negative, got -1.0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(client: OpenAI, fields: Any, param: str, message: str) -> None:
    with pytest.raises(BadRequestError) as error:
        client.chat.completions.create(model="demo", messages=MESSAGES, extra_body=fields)
    assert error.value.param == param and message in str(error.value.body["message"])  # type: ignore[index]


def test_a_field_of_an_extension_that_is_not_used_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="never_used: step-extension 'unused' .* is not used with this") as error:
        client.chat.completions.create(model="demo", messages=MESSAGES, extra_body={"never_used": True})
    assert error.value.param == "never_used"


def test_the_fields_are_documented(extended: Any) -> None:
    schema = extended.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    assert "max_repeats" in schema and "start_after_ms" in schema


def test_fields_of_a_blocked_extension_are_refused(tmp_path: Any) -> None:
    options = PluginOptions(files=(FILE,), block=("step-extension:delay",))
    with Engine(plugins=options, max_total_tokens=8192) as engine:
        answer = engine.generate("a", {**REPEATS, "max_repeats": 2})
        assert len(answer["output_ids"]) == 3
        with pytest.raises((ApiError, RequestError), match="start_after_ms: step-extension 'delay' from .* is blocked"):
            engine.generate("a", {"max_new_tokens": 1, "start_after_ms": 5})
