"""Structured outputs of a real server with each grammar backend: the ``openai`` client, and ``/generate``."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

LIBRARIES = {"llguidance": "llguidance", "outlines": "outlines_core"}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["capital", "village"]},
        "people": {"type": "integer", "minimum": 1, "maximum": 5000},
        "rivers": {"type": "array", "items": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"}, "maxItems": 2},
    },
    "required": ["city", "kind", "people", "rivers"],
    "additionalProperties": False,
}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module", params=sorted(LIBRARIES))
def structured(module_launcher: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server for each grammar backend whose library is installed."""
    if importlib.util.find_spec(LIBRARIES[request.param]) is None:
        pytest.skip(f"{LIBRARIES[request.param]} is not installed")
    with contextlib.closing(module_launcher.in_thread("--grammar-backend", request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def client(structured: Any) -> Iterator[openai.OpenAI]:
    """A client of the ``openai`` package, created as users create it."""
    with openai.OpenAI(base_url=f"{structured.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def answer(client: openai.OpenAI, schema: Any, **options: Any) -> Any:
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return client.chat.completions.create(
        model="any name", messages=FRANCE, response_format=response_format, max_tokens=400, **options
    )


@pytest.mark.parametrize("temperature", [0, 1, 5])
def test_json_schema_through_the_client(client: openai.OpenAI, temperature: float) -> None:
    completion = answer(client, SCHEMA, temperature=temperature, n=4, seed=3)
    assert len(completion.choices) == 4
    for choice in completion.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    options = {"temperature": 1, "seed": 5}
    chunks = list(answer(client, SCHEMA, stream=True, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer(client, SCHEMA, **options).choices[0].message.content
    jsonschema.validate(json.loads(text), SCHEMA)


def test_regex_through_generate(structured: Any) -> None:
    patterns = [r"(cat|dog|catfish){2}", r"[A-ZÀ-Ö]\d{3}-[^a-z\s]{2}", "é+(ü|漢){1,3}!"]
    for pattern in patterns:
        for seed in range(3):
            params = {"regex": pattern, "max_new_tokens": 200, "temperature": 2, "sampling_seed": seed}
            result = structured.generate({"text": "x", "sampling_params": params})
            assert result["meta_info"]["finish_reason"]["type"] == "stop"
            assert re.fullmatch(pattern, result["text"]), result["text"]


def test_what_cannot_be_enforced_is_refused_and_the_next_request_is_served(
    structured: Any, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        answer(client, {"type": "array", "uniqueItems": True})
    refused = structured.post("/generate", {"text": "x", "sampling_params": {"regex": "(?=a)a"}})
    assert refused.status_code == 400 and "lookarounds" in refused.text
    completion = answer(client, {"enum": ["yes", "no"]}, temperature=1)
    assert json.loads(completion.choices[0].message.content) in ("yes", "no")
    structured.wait_whole()


def test_kinds_that_only_one_of_them_has(structured: Any) -> None:
    grammar = 'root ::= "(" root ")" | "x"'
    body = {"text": "x", "sampling_params": {"ebnf": grammar, "max_new_tokens": 300, "temperature": 1}}
    response = structured.post("/generate", body)
    if "outlines" in structured.flags:
        assert response.status_code == 400 and "ebnf" in response.text
    else:
        text = response.json()["text"]
        assert response.json()["meta_info"]["finish_reason"]["type"] == "stop"
        assert text == "(" * (len(text) // 2) + "x" + ")" * (len(text) // 2)


HARD = {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100}
"""A schema that only llguidance enforces."""


def ask(server: Any, **params: Any) -> Any:
    return server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 60, **params}})


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")
def test_auto_takes_for_each_request_a_backend_that_fully_enforces_it(server: Any) -> None:
    for seed in range(3):
        response = ask(server, json_schema=json.dumps(HARD), temperature=3, sampling_seed=seed)
        assert response.status_code == 200, response.text
        assert int(response.json()["text"]) % 7 == 0


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")
def test_a_request_may_name_its_backend(server: Any) -> None:
    hard, schema = json.dumps(HARD), json.dumps({"enum": [7, 14]})
    assert ask(server, json_schema=hard, grammar_backend="llguidance").status_code == 200
    for name in ("xgrammar", "llguidance", "outlines"):
        response = ask(server, json_schema=schema, grammar_backend=name)
        assert response.status_code == 200 and response.json()["text"] in ("7", "14")
    for name, words in (
        ("xgrammar", "'multipleOf' at #"),
        ("xgramar", "no grammar backend 'xgramar' is installed; did you mean 'xgrammar'?"),
        ("nonsense", "installed: "),
    ):
        answer = ask(server, json_schema=hard, grammar_backend=name)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": HARD}}
    chat = {"model": "x", "messages": FRANCE, "response_format": format, "max_tokens": 40}
    responses = {"model": "x", "input": "?", "text": {"format": {"type": "json_schema", "name": "x", "schema": HARD}}}
    completion = {"model": "x", "prompt": "?", "response_format": format, "max_tokens": 40}
    for path, body in (("chat/completions", chat), ("responses", responses), ("completions", completion)):
        assert server.post(f"/v1/{path}", {**body, "grammar_backend": "llguidance"}).status_code == 200, path
        assert server.post(f"/v1/{path}", {**body, "grammar_backend": "xgrammar"}).status_code == 400, path
    server.wait_whole()


BIO = {
    "type": "object",
    "properties": {"bio": {"type": "string", "minLength": 20, "maxLength": 160}},
    "required": ["bio"],
    "additionalProperties": False,
}
LONG = (
    ("json_schema", json.dumps(BIO)),
    ("regex", '"[^"]{20,160}"'),
    ("regex", "[^x]{1,200}x"),
    ("regex", r"(\w{1,30} ){1,6}((\w)*)*\."),
)


@pytest.mark.parametrize("backend", ["llguidance", "outlines", "xgrammar"])
def test_long_strings_and_nested_repetitions(server: Any, backend: str) -> None:
    """Outputs of long strings and nested repetitions are valid at temperature 1, where wrong masks would show."""
    if importlib.util.find_spec(LIBRARIES.get(backend, backend)) is None:
        pytest.skip(f"{backend} is not installed")
    cases = [(kind, source, seed) for kind, source in LONG for seed in range(4)]
    params = [
        {kind: source, "grammar_backend": backend, "temperature": 1, "sampling_seed": seed, "max_new_tokens": 400}
        for kind, source, seed in cases
    ]
    answers = server.generate({"text": ["Write: "] * len(params), "sampling_params": params})
    for (kind, source, _), answer in zip(cases, answers, strict=True):
        assert answer["meta_info"]["finish_reason"]["type"] == "stop", answer
        if kind == "json_schema":
            jsonschema.validate(json.loads(answer["text"]), BIO)
        else:
            assert re.fullmatch(source, answer["text"]), answer["text"]
    server.wait_whole()


@pytest.fixture(scope="module")
def choices_only(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server whose grammar backend is a plugin that enforces only lists of choices."""
    folder = tmp_path_factory.mktemp("plugins")
    new = (sys.executable, "-m", "sglang_plug", "plugins", "new", "grammar", "words", "--into", str(folder))
    subprocess.run(new, check=True, capture_output=True)
    flags = ("--plugins-dir", str(folder), "--grammar-backend", "words")
    with contextlib.closing(module_launcher.in_thread(*flags)) as server:
        yield server


def test_a_plugin_that_enforces_choices_only_gets_them(choices_only: Any) -> None:
    choices = ["yes", "no (maybe)", "a|b"]
    chat = {"model": "x", "messages": FRANCE, "temperature": 1, "max_tokens": 40}
    with openai.OpenAI(base_url=f"{choices_only.url}/v1", api_key="None", max_retries=0) as client:
        extra: Any = {"structured_outputs": {"choice": choices}}
        answers = client.chat.completions.create(**chat, n=8, seed=1, extra_body=extra).choices
        assert {answer.finish_reason for answer in answers} == {"stop"}
        assert {answer.message.content for answer in answers} <= set(choices)
        with pytest.raises(openai.BadRequestError, match=r"regex: .*cannot enforce this kind"):
            client.chat.completions.create(**chat, extra_body={"regex": "yes|no"})
        with pytest.raises(openai.BadRequestError, match=r"structured_outputs.choice: 1001 choices"):
            many = {"structured_outputs": {"choice": [f"choice {number}" for number in range(1001)]}}
            client.chat.completions.create(**chat, extra_body=many)
    choices_only.wait_whole()
