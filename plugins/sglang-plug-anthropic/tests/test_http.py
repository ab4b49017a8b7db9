"""The Messages API as exact HTTP responses of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

QUESTION: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 16,
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Boston"]}}, "required": ["city"]},
}
CALLING = {
    **QUESTION,
    "max_tokens": 64,
    "tools": [WEATHER],
    "messages": [{"role": "user", "content": "What's the weather like in Boston today?"}],
}
LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}


@pytest.fixture
def http(url: str, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        yield client


def refused(answer: httpx.Response, status: int, kind: str) -> str:
    """Return the message of a refusal after checking its envelope."""
    result = answer.json()
    assert (answer.status_code, result["type"], result["error"]["type"]) == (status, "error", kind), answer.text
    assert set(result) == {"type", "error", "request_id"} and set(result["error"]) == {"type", "message"}
    assert result["request_id"] == answer.headers["request-id"]
    return str(result["error"]["message"])


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return name and data of each event after checking the framing."""
    *parts, end = text.split("\n\n")
    assert end == ""
    results = []
    for part in parts:
        name, data = part.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        results.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in results)
    return results


def test_a_message(http: httpx.Client) -> None:
    answer = http.post("/v1/messages", json=QUESTION)
    result = answer.json()
    assert answer.status_code == 200
    assert result.pop("id").startswith("msg_")
    assert answer.headers["request-id"].startswith("req_")
    usage = result.pop("usage")
    assert result == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": "The capital of France is Paris."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert set(usage) == {
        "input_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "output_tokens",
    }


def test_the_events_of_a_stream(http: httpx.Client) -> None:
    answer = http.post("/v1/messages", json={**QUESTION, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    result = events(answer.text)
    names = [name for name, _ in result]
    deltas = names.count("content_block_delta")
    assert deltas > 1
    opening = ["message_start", "content_block_start", "ping"]
    closing = ["content_block_stop", "message_delta", "message_stop"]
    assert names == [*opening, *["content_block_delta"] * deltas, *closing]
    data = [fields for _, fields in result]
    assert data[0]["message"]["content"] == [] and data[0]["message"]["stop_reason"] is None
    assert "".join(item["delta"]["text"] for item in data[3:-3]) == "The capital of France is Paris."
    whole = http.post("/v1/messages", json=QUESTION).json()
    assert data[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert data[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.parametrize(
    ("changes", "text", "reason", "sequence"),
    [
        ({"max_tokens": 2}, "The capital", "max_tokens", None),
        ({"stop_sequences": ["x", "aris"]}, "The capital of France is P", "stop_sequence", "aris"),
        ({}, "The capital of France is Paris.", "end_turn", None),
    ],
)
def test_why_it_stopped(http: httpx.Client, changes: Any, text: str, reason: str, sequence: str | None) -> None:
    result = http.post("/v1/messages", json={**QUESTION, **changes}).json()
    assert result["content"] == [{"type": "text", "text": text}]
    assert (result["stop_reason"], result["stop_sequence"]) == (reason, sequence)
    streamed = events(http.post("/v1/messages", json={**QUESTION, **changes, "stream": True}).text)
    assert streamed[-2][1]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_nothing_generated_is_no_content(http: httpx.Client) -> None:
    nothing = {**QUESTION, "stop_sequences": ["The"]}
    result = http.post("/v1/messages", json=nothing).json()
    assert (result["content"], result["stop_sequence"]) == ([], "The")
    names = [name for name, _ in events(http.post("/v1/messages", json={**nothing, "stream": True}).text)]
    assert names == ["message_start", "message_delta", "message_stop"]


def test_no_new_tokens_only_fill_the_cache(http: httpx.Client) -> None:
    result = http.post("/v1/messages", json={**QUESTION, "max_tokens": 0}).json()
    assert (result["content"], result["stop_reason"], result["usage"]["output_tokens"]) == ([], "max_tokens", 0)


def test_a_final_assistant_message_is_continued(http: httpx.Client) -> None:
    begun = [*QUESTION["messages"], {"role": "assistant", "content": "The capital of France"}]
    result = http.post("/v1/messages", json={**QUESTION, "messages": begun}).json()
    assert result["content"][0]["text"] == " is Paris."


def test_cached_tokens_are_counted_apart(http: httpx.Client) -> None:
    counted = http.post("/v1/messages/count_tokens", json={name: QUESTION[name] for name in ("model", "messages")})
    total = counted.json()["input_tokens"]
    http.post("/v1/messages", json=QUESTION)
    usage = http.post("/v1/messages", json=QUESTION).json()["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == total


def test_system_prompts_count_and_matter(http: httpx.Client) -> None:
    bare = {name: QUESTION[name] for name in ("model", "messages")}
    more = {**bare, "system": [{"type": "text", "text": "Answer in one word."}]}
    plain, longer = (http.post("/v1/messages/count_tokens", json=item).json()["input_tokens"] for item in (bare, more))
    assert longer > plain
    as_text = http.post("/v1/messages/count_tokens", json={**bare, "system": "Answer in one word."}).json()
    assert as_text["input_tokens"] == longer


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        ("/v1/messages", {"max_tokens": None}, "max_tokens"),
        ("/v1/messages", {"model": None}, "model"),
        ("/v1/messages", {"max_tokens": 100_000}, "maximum context length"),
        ("/v1/messages", {"tools": [{"name": "t"}]}, "tools.0.input_schema"),
        ("/v1/messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "'bash_20250124' are not known"),
        ("/v1/messages", {"tools": [WEATHER, WEATHER]}, "two tools are called 'get_weather'"),
        ("/v1/messages", {"tool_choice": {"type": "any"}}, "Tools cannot be empty"),
        ("/v1/messages", {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "Tool 'x' not found"),
        ("/v1/messages", {"tools": [{**WEATHER, "input_schema": {"not": {}}, "strict": True}]}, "'not'"),
        ("/v1/messages", {"thinking": {"type": "enabled"}}, "--reasoning-parser"),
        ("/v1/messages", {"stop_sequences": [""]}, "must not be empty"),
        ("/v1/messages", {"messages": "hello"}, "messages"),
        ("/v1/messages/count_tokens", {"messages": []}, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(http: httpx.Client, path: str, changes: Any, message: str, stream: bool) -> None:
    body = {name: value for name, value in {**QUESTION, **changes, "stream": stream}.items() if value is not None}
    assert message in refused(http.post(path, json=body), 400, "invalid_request_error")


def test_invalid_json_is_refused(http: httpx.Client) -> None:
    for content, kind, status in ((b"{", "application/json", 400), (b"<a/>", "text/xml", 415)):
        answer = http.post("/v1/messages", content=content, headers={"content-type": kind})
        refused(answer, status, "invalid_request_error")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "no"}, {"authorization": "Bearer no"}, {"x-api-key": ""}])
def test_without_the_key(url: str, path: str, headers: dict[str, str]) -> None:
    answer = httpx.post(url + path, json=QUESTION, headers=headers)
    assert "API key" in refused(answer, 401, "authentication_error")


def test_either_header_carries_the_key(url: str, key: str) -> None:
    for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
        assert httpx.post(url + "/v1/messages", json=QUESTION, headers=headers, timeout=60).status_code == 200


def waiting(http: httpx.Client) -> int:
    return int(http.get("/server_info").json()["waiting"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_and_an_abort(http: httpx.Client, stream: bool) -> None:
    body = {**QUESTION, "stream": stream}
    with http.stream("POST", "/generate", json=LONG) as running, ThreadPoolExecutor(1) as pool:
        parts = running.iter_text()  # kept: closing it would end the request
        next(parts)
        queued = pool.submit(http.post, "/v1/messages", json=body)
        while not waiting(http):
            assert not queued.done(), queued.result().text
        assert "full" in refused(http.post("/v1/messages", json=body), 529, "overloaded_error")
        assert http.post("/abort_request", json={"abort_all": True}).status_code == 200
        assert "aborted" in refused(queued.result(), 400, "invalid_request_error")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}], ids=repr)
def test_a_call_that_must_be_made(http: httpx.Client, choice: dict[str, Any]) -> None:
    body = {**CALLING, "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    result = http.post("/v1/messages", json=body).json()
    (call,) = result["content"]
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "get_weather", "input": {"city": "Boston"}}
    assert result["stop_reason"] == "tool_use"
    stream = [data for _, data in events(http.post("/v1/messages", json={**body, "stream": True}).text)]
    assert stream[1]["content_block"]["name"] == "get_weather"
    written = "".join(item["delta"]["partial_json"] for item in stream if item["type"] == "content_block_delta")
    assert json.loads(written) == {"city": "Boston"}
    assert stream[-2]["delta"]["stop_reason"] == "tool_use"


def test_tools_are_shown_unless_they_are_switched_off(http: httpx.Client) -> None:
    counting = {name: CALLING[name] for name in ("model", "messages", "tools")}
    with_tools, without = (
        http.post("/v1/messages/count_tokens", json={**counting, "tool_choice": {"type": kind}}).json()["input_tokens"]
        for kind in ("auto", "none")
    )
    assert with_tools > without
    result = http.post("/v1/messages", json={**CALLING, "tool_choice": {"type": "none"}}).json()
    assert {block["type"] for block in result["content"]} == {"text"}


def test_the_result_of_a_call_is_read(http: httpx.Client) -> None:
    def prompt(result: Any) -> int:
        call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Boston"}}
        answered = {"type": "tool_result", "tool_use_id": "toolu_1", "content": result}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answered]}]
        body = {**CALLING, "messages": [*CALLING["messages"], *turns]}
        outcome = http.post("/v1/messages", json=body)
        assert outcome.status_code == 200, outcome.text
        usage = outcome.json()["usage"]
        return int(usage["input_tokens"] + usage["cache_read_input_tokens"])

    assert prompt("sunny and warm all day long") > prompt([{"type": "text", "text": "sunny"}]) > prompt("")


def test_an_answer_keeps_to_a_format(http: httpx.Client) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}}
    result = http.post("/v1/messages", json={**QUESTION, "output_config": {"format": form, "effort": "low"}}).json()
    assert (json.loads(result["content"][0]["text"]), result["stop_reason"]) == ({"a": 1}, "end_turn")


NO_SCHEMA = {"type": "object", "properties": {"a": {"strict": True, "not": {}}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (
            {"tools": [WEATHER, {"name": "f", "input_schema": NO_SCHEMA}], "tool_choice": {"type": "any"}},
            "tools[1].input_schema",
        ),
        ({"output_format": {"type": "json_schema", "schema": NO_SCHEMA}}, "output_format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": NO_SCHEMA}}},
            "output_config.format.schema",
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named_as_it_was_sent(
    http: httpx.Client, changes: dict[str, Any], field: str, stream: bool
) -> None:
    answer = http.post("/v1/messages", json={**QUESTION, **changes, "stream": stream})
    message = refused(answer, 400, "invalid_request_error")
    assert message == f"{field}: the keyword 'not' at #/properties/a cannot be enforced"


def test_annotations_in_the_schema_of_a_tool_are_ignored(http: httpx.Client) -> None:
    noise = {"strict": True, "x-order": 1, "example": {"city": "Rome"}}
    city = {**noise, "enum": ["Boston"], "nullable": True}
    schema = {**noise, "type": "object", "properties": {"city": city}, "required": ["city"]}
    body = {**CALLING, "tools": [{**WEATHER, "input_schema": schema}], "tool_choice": {"type": "any"}}
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["content"]
    assert call["input"]["city"] in ("Boston", None)


def test_both_routes_are_in_the_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["paths"]["/v1/messages"]["post"]["tags"] == ["Anthropic"]
    schema = document["components"]["schemas"]["AnthropicBody"]
    assert set(schema["required"]) == {"model", "messages", "max_tokens"}


def test_a_thread_is_refused_so_that_clients_send_the_whole_conversation(http: httpx.Client) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = http.post(path, json={**QUESTION, "thread": {"type": "new"}})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["details"] == {"error_code": "thread_unsupported_request"}
        assert "'thread' is not supported" in error["message"]
        assert http.post(path, json={**QUESTION, "thread": None}).status_code == 200


def test_the_start_of_a_stream_counts_the_first_tokens(http: httpx.Client) -> None:
    streamed = events(http.post("/v1/messages", json={**QUESTION, "stream": True}).text)
    first, last = streamed[0][1]["message"]["usage"], streamed[-2][1]["usage"]
    assert 0 < first["output_tokens"] < last["output_tokens"]
