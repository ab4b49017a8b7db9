"""Constrained outputs through a real server: an output that ended with ``stop`` satisfies its constraint."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

from .replaying import in_time, replayed
from .servers import command_of, until

pytestmark = pytest.mark.usefixtures("server")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
        "more": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,5}$"}]},
    },
    "required": ["name", "age", "more"],
}
WILD = {"temperature": 2.5, "max_new_tokens": 120}
HELLO: Any = [{"role": "user", "content": "Tell me about Anna."}]


def ask(server: Any, prompt: str = "Tell me about Anna: ", status: int = 200, **params: Any) -> Any:
    answer = server.post("/generate", {"text": prompt, "sampling_params": {**WILD, **params}})
    assert answer.status_code == status, answer.text
    return answer.json()


def texts(answers: Any) -> list[str]:
    """Return the texts of the outputs that ended with ``finish_reason`` ``stop``."""
    finished = [answer["text"] for answer in answers if answer["meta_info"]["finish_reason"]["type"] == "stop"]
    assert finished
    return finished


@pytest.fixture(scope="module")
def client(server: Any) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_openai_client_gets_json_of_the_schema(client: OpenAI) -> None:
    format: Any = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = client.chat.completions.create(model="x", messages=HELLO, max_tokens=120, response_format=format)
    assert answer.choices[0].finish_reason == "stop"
    Draft202012Validator(PERSON).validate(json.loads(answer.choices[0].message.content or ""))


def test_the_openai_client_gets_any_object_also_as_a_stream(client: OpenAI) -> None:
    format: Any = {"type": "json_object"}
    messages: Any = [{"role": "user", "content": "Give me the capital of France in JSON."}]
    options: Any = {"model": "x", "messages": messages, "max_tokens": 200, "response_format": format, "temperature": 0}
    answer = client.chat.completions.create(**options)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    pieces = [chunk.choices[0] for chunk in client.chat.completions.create(**options, stream=True)]
    assert "".join(piece.delta.content or "" for piece in pieces) == answer.choices[0].message.content
    assert pieces[-1].finish_reason == "stop"


def test_a_schema_that_cannot_be_kept_to_is_a_bad_request(client: OpenAI) -> None:
    for stream in (False, True):
        format: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"items": {"not": {}}}}}
        with pytest.raises(BadRequestError, match="'not' at #/items cannot be enforced"):
            client.chat.completions.create(model="x", messages=HELLO, response_format=format, stream=stream)


def test_extensions_on_completions(client: OpenAI) -> None:
    answer = client.completions.create(
        model="x", prompt="a", max_tokens=50, n=3, extra_body={"regex": "[0-9]{3}-[xyz]+!"}
    )
    assert all(
        re.fullmatch("[0-9]{3}-[xyz]+!", choice.text) or choice.finish_reason == "length" for choice in answer.choices
    )
    answer = client.completions.create(model="x", prompt="a", extra_body={"ebnf": 'root ::= "yes" | "no"'})
    assert answer.choices[0].text in ("yes", "no")


@pytest.mark.parametrize(
    ("pattern", "params"),
    [
        ("(Paris|London)", {}),
        ("[ab]{3,5}", {"min_new_tokens": 10}),
        ("(?:[01]?\\d|2[0-3]):[0-5]\\d", {"ignore_eos": True}),
        ("", {"min_new_tokens": 3}),
        ("[a-z]{2,4}( [a-z]{2,4}){0,3}\\.", {"repetition_penalty": 1.5, "frequency_penalty": 1.0}),
        ("a+", {"logit_bias": {"17": 50.0}, "top_k": 5}),
        (r"\{\n  \"x\": [\w ]{1,8}\n\}", {"top_p": 0.5, "min_p": 0.01}),
        ("é+ü?", {}),
    ],
)
def test_expressions(server: Any, pattern: str, params: Any) -> None:
    answers = ask(server, regex=pattern, n=4, **params)
    for text in texts(answers):
        assert re.fullmatch(pattern, text), text


def test_an_empty_expression_ends_at_once(server: Any) -> None:
    answer = ask(server, regex="")
    assert (answer["text"], answer["meta_info"]["completion_tokens"]) == ("", 0)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}


def balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}[character]
        if depth < 0:
            return False
    return depth == 0


def test_grammars(server: Any) -> None:
    answers = ask(server, ebnf='root ::= "(" root ")" root | ""', n=8, max_new_tokens=60)
    assert all(balanced(text) for text in texts(answers))
    deeper = ask(server, ebnf='root ::= "a" root "b" | ""', n=8, max_new_tokens=60, min_new_tokens=4)
    for text in texts(deeper):
        assert text == "a" * (len(text) // 2) + "b" * (len(text) // 2) and text


def test_structural_tags(server: Any) -> None:
    schema = {"properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tag = {"structures": [{"begin": "<get>", "schema": schema, "end": "</get>"}], "triggers": ["<get>"]}
    forced = {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": ["<get>"], "at_least_one": True, "stop_after_first": True,
                   "tags": [{"type": "tag", "begin": "<get>", "end": "</get>",
                             "content": {"type": "json_schema", "json_schema": schema}}]},
    }  # fmt: skip
    assert ask(server, structural_tag=tag)["text"]
    for text in texts(ask(server, structural_tag=json.dumps(forced), n=4)):
        assert json.loads(re.fullmatch("<get>(.*)</get>", text)[1])["city"] in ("Paris", "Rome")  # type: ignore[index]


def random_schema(source: random.Random, depth: int = 2) -> Any:
    kinds = ["integer", "number", "string", "enum", "boolean"] + (["object", "array", "any of"] if depth else [])
    match source.choice(kinds):
        case "integer":
            low = source.randint(-300, 300)
            return {"type": "integer", "minimum": low, "maximum": low + source.randint(0, 500)}
        case "number":
            low = source.randint(-30, 30) / 4
            return {"type": "number", "minimum": low, "exclusiveMaximum": low + source.randint(1, 9) / 2}
        case "string":
            format = source.choice(["date", "uuid", "ipv4", "time"])
            limits: Any = source.choice([{"maxLength": 6}, {"pattern": "^[a-f]{1,4}$"}, {"format": format}])
            return {"type": "string", **limits}
        case "enum":
            return {"enum": source.sample([1, "a", None, True, "b c", {"x": [1]}, 2.5], 3)}
        case "boolean":
            return {"type": ["boolean", "null"]}
        case "object":
            names = source.sample(["name", "a", "b", "ünï", "x y"], source.randint(1, 3))
            properties = {name: random_schema(source, depth - 1) for name in names}
            return {"type": "object", "properties": properties, "required": names[: source.randint(0, len(names))]}
        case "array":
            return {
                "type": "array",
                "items": random_schema(source, depth - 1),
                "minItems": source.randint(0, 2),
                "maxItems": 3,
            }
    return {"anyOf": [random_schema(source, depth - 1) for _ in range(2)]}


def test_whatever_the_schema_what_ends_is_valid(server: Any) -> None:
    """Finished outputs are valid for random schemas, at a temperature where the model's logits hardly matter."""
    schemas = [random_schema(random.Random(seed)) for seed in range(24)]
    params = [{**WILD, "json_schema": schema, "max_new_tokens": 300} for schema in schemas]
    answers = server.generate({"text": ["x"] * len(schemas), "sampling_params": params})
    ended = 0
    for schema, answer in zip(schemas, answers, strict=True):
        if answer["meta_info"]["finish_reason"]["type"] == "stop":
            ended += 1
            checker = Draft202012Validator.FORMAT_CHECKER
            Draft202012Validator(schema, format_checker=checker).validate(json.loads(answer["text"]))
    assert ended > len(schemas) // 2


def test_seeds_and_several_outputs(server: Any) -> None:
    first = ask(server, json_schema=PERSON, n=3, seed=5)
    again = ask(server, json_schema=PERSON, n=3, seed=5)
    assert [answer["text"] for answer in first] == [answer["text"] for answer in again]
    assert len({answer["text"] for answer in first}) > 1
    for text in texts(first):
        Draft202012Validator(PERSON).validate(json.loads(text))


def test_logprobs_are_the_models_own_and_streams_add_up(server: Any) -> None:
    body = {"text": "The capital of France is", "return_logprob": True, "top_logprobs_num": 2}
    params = {"temperature": 0.0, "regex": " Rome!", "max_new_tokens": 10}
    whole = server.generate({**body, "sampling_params": params})
    assert whole["text"] == " Rome!"
    reported, top = whole["meta_info"]["output_token_logprobs"], whole["meta_info"]["output_top_logprobs"]
    assert len(reported) == whole["meta_info"]["completion_tokens"]
    assert top[0][0][0] > reported[0][0], "the model would have said something else"
    events = server.events("/generate", {**body, "sampling_params": params})
    assert events[-1]["text"] == " Rome!"
    streamed = events[-1]["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in streamed] == [entry[1] for entry in reported]
    assert [entry[0] for entry in streamed] == pytest.approx([entry[0] for entry in reported], abs=1e-3)


def test_stop_tokens_end_an_output_only_where_it_may_end(server: Any) -> None:
    (comma,) = {answer["output_ids"][-1] for answer in [ask(server, regex=",", temperature=0.0)]}
    answers = ask(server, regex="a,b", n=2, stop_token_ids=[comma])
    assert texts(answers) == ["a,b"] * 2
    answers = ask(server, regex="a(,b)*", n=4, stop_token_ids=[comma])
    assert {answer["text"] for answer in answers} <= {"a"}


def test_retracted_sequences_keep_their_grammar_state(server: Any, narrow: Any) -> None:
    params = {"regex": "(?:[a-z]{3} )+end", "max_new_tokens": 260, "temperature": 0.0, "min_new_tokens": 230}
    body = {
        "text": [f"{word} and" for word in ("one", "two", "three", "four")],
        "sampling_params": params,
    }
    expected, actual = server.generate(body), narrow.generate(body)
    assert sum(answer["meta_info"]["num_retractions"] for answer in actual) > 0
    assert [answer["output_ids"] for answer in actual] == [answer["output_ids"] for answer in expected]
    for answer in actual:
        assert re.match("(?:[a-z]{3} )+", answer["text"]) and len(answer["output_ids"]) > 200
    narrow.wait_whole()


def test_hostile_constraints_while_another_request_decodes(server: Any) -> None:
    """Invalid, ambiguous and deeply nested constraints do not slow down a request that decodes."""
    hostile = [
        {"regex": "(" * 30_000 + ")" * 30_000},
        {"ebnf": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
        {"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000},
        {"json_schema": {"$ref": "#"}},
        {"regex": "(a{0,100}){0,100}b", "logit_bias": {}, "max_new_tokens": 500},
        {"regex": "((a*)*)*b", "max_new_tokens": 500},
        {"ebnf": 'root ::= root root root | "a" | ""', "max_new_tokens": 500},
        {"structural_tag": "-1"},
    ]
    steps: list[float] = []

    def decode() -> None:
        with server.client.stream(
            "POST",
            "/generate",
            json={"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}},
        ) as answer:
            for _ in answer.iter_lines():
                steps.append(time.monotonic())

    thread = threading.Thread(target=decode)
    thread.start()
    with ThreadPoolExecutor(len(hostile)) as pool:
        bodies = [{"text": "x", "sampling_params": {**WILD, **constraint}} for constraint in hostile]
        answers = list(pool.map(lambda body: server.post("/generate", body), bodies))
    assert [answers[index].status_code for index in (0, 1, 2, 3, 7)] == [400] * 5
    assert {answer.status_code for answer in answers} <= {200, 400}
    thread.join()
    assert len(steps) > 1500
    assert re.fullmatch("ok", ask(server, regex="ok")["text"])
    server.wait_whole()


def test_a_held_request_is_counted_and_can_be_aborted(launch: Any) -> None:
    """While the compiler starts, constrained requests wait, and others do not."""
    server = launch("--skip-server-warmup")
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(server.post, "/generate", {"text": "x", "rid": "held", "sampling_params": {"regex": "abc"}})
        assert server.generate({"text": "x", "sampling_params": {"max_new_tokens": 2}})["output_ids"]
        answer = held.result()
    assert answer.json()["text"] == "abc"
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()


@replayed
def test_killing_the_compiling_process_fails_no_request(server: Any) -> None:
    ask(server, regex="begun")

    def workers() -> set[int]:
        return {pid for pid in server.members() if b"structured_outputs.grammar_worker" in command_of(pid)}

    names = [f"{uuid.uuid4()}" for _ in range(42)]  # schemas that were never compiled
    schemas = [{"type": "object", "properties": {name: PERSON}, "required": [name]} for name in names]
    with ThreadPoolExecutor(len(schemas)) as pool:
        answers = [
            pool.submit(server.post, "/generate", {"text": "x", "sampling_params": {**WILD, "json_schema": schema}})
            for schema in schemas
        ]

        def is_over() -> bool:
            return all(answer.done() for answer in answers)

        for _ in range(2):
            killed = workers()
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda killed=killed: workers() - killed or is_over(), "another compiling process")
            in_time(workers() - killed, "there are schemas to compile")
        assert [answer.result().status_code for answer in answers] == [200] * len(schemas)
    server.wait_whole()


def test_servers_without_grammars_say_so(token_server: Any, launch: Any) -> None:
    error = token_server.post("/generate", {"input_ids": [5], "sampling_params": {"regex": "a"}})
    assert error.status_code == 400 and "--skip-tokenizer-init" in error.json()["error"]["message"]
    server = launch("--grammar-backend", "none", "--skip-server-warmup")
    error = server.post("/v1/completions", {"prompt": "x", "regex": "a"})
    assert error.status_code == 400 and "--grammar-backend none" in error.json()["error"]["message"]
    assert not any(b"grammar_worker" in command_of(pid) for pid in server.members())
