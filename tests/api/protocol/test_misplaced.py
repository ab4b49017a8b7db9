"""Fields of other servers and routes are refused by name unless their value has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sglang_plug import PluginOptions, Plugins
from sglang_plug_api.answers.errors import from_validation
from sglang_plug_api.options.request_fields import request_fields
from sglang_plug_api.protocol.base import RequestBody, validation_context
from sglang_plug_api.protocol.embeddings import EmbeddingsBody, RerankBody
from sglang_plug_api.protocol.misplaced import FALSE_ASKS, NEUTRAL
from sglang_plug_api.protocol.native import GenerateBody, SamplingBody
from sglang_plug_api.protocol.openai import ChatBody, CompletionBody
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.protocol.score import ScoreBody
from sglang_plug_api.protocol.tokenize import TokenizeBody

BODIES: Mapping[type[RequestBody], Mapping[str, Any]] = {
    ChatBody: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionBody: {"prompt": "x"},
    ResponsesBody: {"input": "x"},
    GenerateBody: {"text": "x"},
    SamplingBody: {},
    EmbeddingsBody: {"input": "x"},
    RerankBody: {"query": "x", "documents": ["y"]},
    ScoreBody: {"query": "x", "items": ["y"], "label_token_ids": [1]},
    TokenizeBody: {"messages": [{"role": "user", "content": "Hi"}]},
}


def declared(body: RequestBody) -> dict[str, Any]:
    """Return the fields that the class of a body declares."""
    return body.model_dump(include=set(type(body).model_fields))


CASES = [(body, name) for body in BODIES for name in body.misplaced]


@pytest.mark.parametrize(("body", "name"), CASES, ids=[f"{body.__name__}-{name}" for body, name in CASES])
def test_what_would_do_nothing_is_refused_by_name(body: type[RequestBody], name: str) -> None:
    assert name not in body.model_fields, "a field that has an effect, or is refused elsewhere"
    with pytest.raises(ValidationError) as caught:
        body.model_validate({**BODIES[body], name: {"x": 1}})
    refusal = from_validation(caught.value)
    assert (refusal.status, refusal.param) == (400, name)
    assert refusal.message == f"{name!r} would have no effect here: {body.misplaced[name]}"
    plain = body.model_validate(BODIES[body])
    for nothing in (None, *(() if name in FALSE_ASKS else (False,)), [], "", *NEUTRAL.get(name, ())):
        assert declared(body.model_validate({**BODIES[body], name: nothing})) == declared(plain)


WATERMARK_PLUGIN = """
from dataclasses import dataclass

from sglang_plug import LogitsProcessorSpec, hookimpl


@dataclass(frozen=True)
class Fields:
    watermark: dict | None = None


@hookimpl
def register_logits_processors():
    yield LogitsProcessorSpec(name="marker", target="x:Marker", summary="x", request_fields=f"{__name__}:Fields")
"""


@pytest.mark.parametrize("blocked", [(), ("logits-processor:marker",)], ids=["loaded", "blocked"])
@pytest.mark.parametrize(
    ("body", "remedy"),
    [
        (GenerateBody, "it belongs in sampling_params"),
        (EmbeddingsBody, "it is a parameter of requests that generate text"),
    ],
)
def test_a_field_of_a_processor_of_this_server_gets_the_remedy_of_its_route(
    tmp_path: Path, body: type[RequestBody], remedy: str, blocked: tuple[str, ...]
) -> None:
    """The remedy is that of the route, not the one for fields of other servers that no plugin of this server has."""
    assert "watermark" in body.misplaced
    (tmp_path / "marker.py").write_text(WATERMARK_PLUGIN)
    plugins = Plugins.discover(PluginOptions(files=(str(tmp_path / "marker.py"),), block=blocked))
    with pytest.raises(ValidationError) as caught:
        body.model_validate({**BODIES[body], "watermark": {}}, context=validation_context(request_fields(plugins)))
    refusal = from_validation(caught.value)
    assert (refusal.param, refusal.message) == ("watermark", f"'watermark' would have no effect here: {remedy}")


def test_zero_is_not_nothing() -> None:
    with pytest.raises(ValidationError, match="it belongs in sampling_params"):
        GenerateBody.model_validate({"text": "x", "temperature": 0})


def test_an_unknown_sampling_parameter_is_a_slip() -> None:
    for name in ("max_new_token", "Temperature"):
        with pytest.raises(ValidationError) as caught:
            GenerateBody.model_validate({"text": "x", "sampling_params": [{"n": 1}, {name: 0}]})
        refusal = from_validation(caught.value)
        assert refusal.param == f"sampling_params.1.{name}"
        assert refusal.message == f"there is no sampling parameter {name!r}"
        assert declared(SamplingBody.model_validate({name: None})) == declared(SamplingBody())
    assert SamplingBody.model_validate({"stream_interval": 5}).stream_interval == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "x", "user": "x"},
        {"prompt_cache_key": "x", "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"},
        {"prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "verbosity": "medium"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_what_cannot_change_the_answer_passes(fields: Any) -> None:
    body = declared(ChatBody.model_validate({**BODIES[ChatBody], **fields}))
    plain = declared(ChatBody.model_validate(BODIES[ChatBody]))
    changed = {name: value for name, value in body.items() if value != plain[name]}
    assert changed.keys() == fields.keys() & {"user", "stream", "stream_options"}


@pytest.mark.parametrize(
    ("body", "fields", "param"),
    [
        (ChatBody, {"top_logprobs": 3}, "top_logprobs"),
        (ChatBody, {"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        (TokenizeBody, {"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        (ChatBody, {"stream_options": {}}, "stream_options"),
        (CompletionBody, {"best_of": 3}, "best_of"),
        (CompletionBody, {"suffix": "x"}, "suffix"),
        (ResponsesBody, {"stream_options": {}}, "stream_options"),
        (ResponsesBody, {"include": ["everything"]}, "include"),
        (GenerateBody, {"text": ""}, "text"),
        (GenerateBody, {"text": None, "input_ids": []}, "input_ids"),
        (GenerateBody, {"sampling_params": {"max_tokens": 3}}, "sampling_params.max_tokens"),
        (ChatBody, {"stream": True, "stream_options": {"guided_json": {}}}, "stream_options.guided_json"),
    ],
    ids=str,
)
def test_rules_about_several_fields_name_one(body: type[RequestBody], fields: Any, param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        body.model_validate({**BODIES[body], **fields})
    assert from_validation(caught.value).param == param
