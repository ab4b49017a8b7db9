"""Tests of the conversion of the fields of a request to one constraint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_plug import Constraint
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.native.generate import Generation
from sglang_plug_api.openai.choices import make_jobs
from sglang_plug_api.protocol.native import GenerateBody, SamplingBody
from sglang_plug_api.protocol.openai import ChatBody
from sglang_plug_api.text.constraints import ONLY_ONE, generation_constraint, sampling_constraint
from sglang_plug_api.text.job import Job

SCHEMA = {"type": "object", "title": "é"}
COMPACT = '{"type":"object","title":"é"}'
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


def body(**fields: Any) -> ChatBody:
    return ChatBody(messages=[{"role": "user", "content": "x"}], **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {}}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        ({"response_format": {"type": "json_object", "schema": None}}, Constraint("json_object")),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "null"}}},
            Constraint("json_schema", '{"type":"null"}'),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            Constraint("json_schema", COMPACT),
        ),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, Constraint("json_schema", COMPACT)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": {}}},
            Constraint("json_schema", COMPACT),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema_": True}}},
            Constraint("json_schema", "true"),
        ),
        ({"response_format": TAG}, Constraint("structural_tag", json.dumps(TAG, separators=(",", ":")))),
        ({"response_format": {"type": "text"}, "regex": "a+"}, Constraint("regex", "a+")),
        ({"regex": ""}, Constraint("regex", "")),
        ({"ebnf": "root ::= x"}, Constraint("ebnf", "root ::= x")),
        ({"regex": "a", "grammar_backend": "outlines"}, Constraint("regex", "a", "outlines")),
        ({"grammar_backend": "outlines"}, None),
        ({"structured_outputs": {"choice": ["a|b", "é\n"]}}, Constraint("choice", '["a|b","é\\n"]')),
        (
            {"structured_outputs": {"choice": ["a"]}, "grammar_backend": "words"},
            Constraint("choice", '["a"]', "words"),
        ),
    ],
)
def test_openai_fields(fields: dict[str, Any], expected: Constraint | None) -> None:
    constraint, field = generation_constraint(body(**fields))
    assert constraint == expected and bool(field) == (expected is not None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"regex": "a"}, "regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema_": SCHEMA}}},
            "response_format.json_schema.schema_",
        ),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
    ],
)
def test_the_field_of_a_constraint(fields: dict[str, Any], field: str) -> None:
    assert generation_constraint(body(**fields))[1] == field


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"response_format": {"type": "banana"}}, "'banana' is unknown", "response_format"),
        ({"response_format": {"type": 5}}, "unknown", "response_format"),
        ({"response_format": {"json_schema": {"schema": SCHEMA}}}, "needs a type", "response_format"),
        ({"response_format": {"type": None}}, "needs a type", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "must be an object", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "schema_ is required for json_schema",
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "{}"}}},
            "JSON schema",
            "response_format",
        ),
        (
            {"response_format": {"type": "json_object", "schema": "{}"}},
            r"^response_format\.schema must be a JSON schema",
            "response_format",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, ONLY_ONE, "response_format"),
        ({"regex": "a", "ebnf": "b"}, ONLY_ONE, "ebnf"),
        ({"regex": "a\0"}, "NUL", "regex"),
        ({"regex": "\ud800"}, "surrogate", "regex"),
        ({"structured_outputs": {"choice": ["a", "b\0"]}}, "NUL", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["\ud800"]}}, "surrogate", "structured_outputs.choice"),
    ],
)
def test_openai_refusals(fields: dict[str, Any], words: str, param: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        generation_constraint(body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"json_schema": SCHEMA}, Constraint("json_schema", COMPACT)),
        ({"json_schema": "{}"}, Constraint("json_schema", "{}")),
        ({"structural_tag": "-1"}, Constraint("structural_tag", "-1")),
        ({"structural_tag": TAG}, Constraint("structural_tag", json.dumps(TAG, separators=(",", ":")))),
        ({"regex": "a"}, Constraint("regex", "a")),
        ({"ebnf": "a"}, Constraint("ebnf", "a")),
    ],
)
def test_native_fields(fields: dict[str, Any], expected: Constraint | None) -> None:
    constraint, field = sampling_constraint(SamplingBody(**fields), "params")
    assert constraint == expected
    assert field == ("" if expected is None else f"params.{expected.kind}")


def test_at_most_one_native_field() -> None:
    with pytest.raises(ApiError, match=ONLY_ONE):
        sampling_constraint(SamplingBody(json_schema="{}", structural_tag="{}"))


async def test_every_output_of_a_request_carries_it(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    sampling = engine.defaults.complete({"n": 2}, 1, 5)
    jobs = make_jobs(engine, body(), [Job(tokens=[65], constraint=Constraint("regex", "a"))], [sampling], None, "id")
    assert [job.constraint for job in jobs] == [Constraint("regex", "a")] * 2
    fields = {"text": ["a", "b"], "sampling_params": [{"regex": "x"}, {}]}
    await (await Generation.prepare(engine, GenerateBody.model_validate(fields))).answer()
    assert [request.constraint for request in scripted.requests] == [Constraint("regex", "x"), None]
