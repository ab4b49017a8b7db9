"""Schemas with annotations, and tagged unions of pydantic, through a real server and the ``openai`` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from tests.annotated_schemas import ANNOTATIONS

BACKENDS = ("xgrammar", "llguidance", "outlines")
MESSAGES: Any = [{"role": "user", "content": "Which pet lives here?"}]
NOISE = {name: value for name, value in ANNOTATIONS.items() if name != "nullable"}
WEATHER = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["celsius", "kelvin"], "strict": True, **NOISE},
        "days": {"type": "integer", "minimum": 1, "maximum": 5, "nullable": True, "format": "int32"},
        "place": {"$ref": "#/$defs/place", "example": "Rome"},
    },
    "required": ["unit", "days", "place"],
    "additionalProperties": False,
    "strict": True,
    **NOISE,
    "$defs": {"place": {"enum": ["Rome", "Oslo"], "markdownDescription": "*where*", "x-order": [1]}},
}
NULLABLE_DAYS = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}]}
EXPECTED = {**WEATHER, "properties": {**WEATHER["properties"], "days": NULLABLE_DAYS}}  # type: ignore[dict-item]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    barks: bool


class Home(BaseModel):
    """A home with a pet, which is a union that a field discriminates."""

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def tool(parameters: Any, name: str = "weather", **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.mark.parametrize("backend", BACKENDS)
def test_annotations_change_nothing_of_an_answer(client: openai.OpenAI, backend: str) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}
    answer = client.chat.completions.create(
        model="x",
        messages=MESSAGES,
        response_format=format,
        n=4,
        temperature=2,
        seed=1,
        extra_body={"grammar_backend": backend},
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        Draft202012Validator(EXPECTED).validate(json.loads(choice.message.content or ""))


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_annotations_change_nothing_of_calls(client: openai.OpenAI, choice: Any, backend: str) -> None:
    answer = client.chat.completions.create(
        model="x",
        messages=MESSAGES,
        tools=[tool(WEATHER, strict=True)],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=1,
        seed=1,
        max_tokens=200,
        extra_body={"grammar_backend": backend},
    )
    calls = answer.choices[0].message.tool_calls or []
    assert calls or choice == "auto"
    for call in calls:
        Draft202012Validator(EXPECTED).validate(json.loads(call.function.arguments))


def test_nullable_values_may_be_null(client: openai.OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a"], "nullable": True}}}
    texts = {
        choice.message.content
        for backend in BACKENDS
        for choice in client.chat.completions.create(
            model="x",
            messages=MESSAGES,
            response_format=format,
            n=8,
            temperature=5,
            seed=3,
            extra_body={"grammar_backend": backend},
        ).choices
    }
    assert texts == {'"a"', "null"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_tagged_unions_are_parsed(client: openai.OpenAI, backend: str, seed: int) -> None:
    extra: Any = {"extra_body": {"grammar_backend": backend, "seed": seed}, "temperature": 2}
    chat = client.chat.completions.parse(model="x", messages=MESSAGES, response_format=Home, **extra)
    response = client.responses.parse(model="x", input="Which pet?", text_format=Home, **extra)
    for home in (chat.choices[0].message.parsed, response.output_parsed):
        assert isinstance(home, Home) and isinstance(home.pet, Cat | Dog)


def test_tagged_unions_are_arguments_of_tools(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(
        model="x",
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Home)],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1,
        seed=1,
    )
    (call,) = chat.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Home)
    response = client.responses.create(
        model="x",
        input="Which pet?",
        tools=[{"type": "function", "name": "home", "parameters": Home.model_json_schema(), "strict": False}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1,
    )
    (item,) = [entry for entry in response.output if entry.type == "function_call"]
    Home.model_validate_json(item.arguments)


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_what_cannot_be_enforced_names_the_field_that_was_sent(client: openai.OpenAI, backend: str) -> None:
    bad = {"type": "object", "properties": {"a": {"x-note": 1, "not": {"type": "null"}}}}
    extra: Any = {"extra_body": {"grammar_backend": backend}}
    with pytest.raises(openai.BadRequestError) as chat:
        client.chat.completions.create(
            model="x", messages=MESSAGES, tools=[tool({}, "good"), tool(bad)], tool_choice="required", **extra
        )
    with pytest.raises(openai.BadRequestError) as response:
        client.responses.create(
            model="x", input="x", text={"format": {"type": "json_schema", "name": "x", "schema": bad}}, **extra
        )
    for caught, field in ((chat, "tools[1].function.parameters"), (response, "text.format.schema")):
        assert caught.value.param == field
        assert f"{field}: the keyword 'not' at #/properties/a cannot be enforced" in caught.value.message


def test_what_only_a_library_refuses_names_the_tool(client: openai.OpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="x",
            messages=MESSAGES,
            tools=[tool({}, "good"), tool({}, "better"), tool(bad)],
            tool_choice="required",
            extra_body={"grammar_backend": "llguidance"},
        )
    assert caught.value.param == "tools[2].function.parameters"
