"""Answers of a real server, validated strictly against the types of the ``openai`` package.

The client itself builds its objects without looking: a missing field or a word that is not in an enumeration shows only
where somebody reads it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.pagination import SyncCursorPage, SyncPage
from openai.types import Batch, Completion, CreateEmbeddingResponse, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import TypeAdapter

from .replaying import in_time, replayed, wait_in_time
from .servers import until
from .weather import ASK, FLAT_WEATHER, nested

FRANCE = "What is the capital of France?"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0, "max_tokens": 60}
WEATHER: dict[str, Any] = {"messages": [{"role": "user", "content": ASK}], "tools": [nested(FLAT_WEATHER)]}
COMPLETION: dict[str, Any] = {"prompt": "The capital of", "temperature": 0, "max_tokens": 6}
RESPONSE: dict[str, Any] = {"input": FRANCE, "temperature": 0, "max_output_tokens": 60}
CALLS: dict[str, Any] = {"input": ASK, "tools": [FLAT_WEATHER], "tool_choice": "required"}

CHATS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "several": {"n": 2, "temperature": 1.0, "seed": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "cut off": {"max_tokens": 2},
    "stopped": {"stop": ["Paris"]},
    "nothing": {"max_tokens": 0},
    "object": {"response_format": {"type": "json_object"}},
    "calls": {**WEATHER, "tool_choice": "required"},
    "one call": {**WEATHER, "tool_choice": "required", "parallel_tool_calls": False},
    "maybe calls": WEATHER,
}
RESPONSES: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "cut off": {"max_output_tokens": 2},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "calls": CALLS,
    "named call": {**CALLS, "tool_choice": {"type": "function", "name": FLAT_WEATHER["name"]}},
    "allowed calls": {
        **CALLS,
        "tool_choice": {
            "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": FLAT_WEATHER["name"]}],
        },
    },
    "schema": {"text": {"format": {"type": "json_schema", "name": "any", "schema": {"type": "object"}}}},
    "all said": {
        "instructions": "Be brief.", "metadata": {"a": "b"}, "truncation": "auto", "top_p": 0.9, "user": "me",
        "reasoning": {"effort": "none"}, "store": False, "parallel_tool_calls": False,
    },
}  # fmt: skip


def read(kind: Any, value: Any) -> Any:
    """Validate ``value`` as ``kind``: no missing field, no other type, no unknown value of a literal."""
    return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)


def answer(server: Any, path: str, body: Any) -> Any:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", CHATS)
def test_chat_completions(server: Any, name: str) -> None:
    body = {**CHAT, **CHATS[name]}
    completion = read(ChatCompletion, answer(server, "/v1/chat/completions", body))
    assert [choice.index for choice in completion.choices] == list(range(body.get("n", 1)))
    chunks = [
        read(ChatCompletionChunk, event)
        for event in server.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    ]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *parts, last = chunks
    assert last.choices == [] and last.usage is not None
    assert last.usage.prompt_tokens == completion.usage.prompt_tokens
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in parts)
    for choice in completion.choices:
        check_choice([chunk.choices[0] for chunk in parts if chunk.choices[0].index == choice.index], choice)


def check_choice(parts: list[Any], whole: Any) -> None:
    """Check the deltas of a choice: the role once and first, the finish reason once and last, calls in order."""
    assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [whole.finish_reason]
    assert "".join(part.delta.content or "" for part in parts) == (whole.message.content or "")
    calls: list[list[str]] = []
    for call in (piece for part in parts for piece in part.delta.tool_calls or ()):
        if call.id is not None:
            assert call.index == len(calls) and call.type == "function"
            calls.append([call.function.name, ""])
        assert call.index == len(calls) - 1
        calls[-1][1] += call.function.arguments or ""
    assert calls == [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or ()]
    tokens = [entry.token for part in parts if part.logprobs for entry in part.logprobs.content]
    assert tokens == [entry.token for entry in (whole.logprobs.content if whole.logprobs else ())]


@pytest.mark.parametrize(
    "change", [{}, {"n": 2}, {"logprobs": 2}, {"logprobs": 0, "stop": ["the"]}, {"prompt": ["a", "b"]}]
)
def test_completions(server: Any, change: Any) -> None:
    body = {**COMPLETION, **change}
    completion = read(Completion, answer(server, "/v1/completions", body))
    texts, reasons = [""] * len(completion.choices), [0] * len(completion.choices)
    for event in server.events("/v1/completions", body):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] += choice["finish_reason"] is not None
        choice["finish_reason"] = choice["finish_reason"] or "stop"  # the type has no word for "not yet"
        read(Completion, event)
    assert texts == [choice.text for choice in completion.choices]
    assert set(reasons) == {1}


@pytest.mark.parametrize("name", RESPONSES)
def test_responses(server: Any, name: str) -> None:
    body = {**RESPONSE, **RESPONSES[name]}
    whole = read(Response, answer(server, "/v1/responses", body))
    events = streamed(server, body)
    for event in events:
        read(ResponseStreamEvent, event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = read(Response, events[-1]["response"])
    assert (events[-1]["type"], final.status) == (f"response.{whole.status}", whole.status)
    check_events(events, events[-1]["response"]["output"])
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    stored = server.get(f"/v1/responses/{final.id}")
    if body.get("store") is False:
        assert stored.status_code == 404
        return
    assert stored.json() == events[-1]["response"]
    items = read(ResponseItemList, server.get(f"/v1/responses/{final.id}/input_items").json())
    assert len(items.data) == 1
    assert server.client.delete(f"/v1/responses/{final.id}").status_code == 200


def streamed(server: Any, body: Any) -> list[dict[str, Any]]:
    text = server.post("/v1/responses", {**body, "stream": True}).text
    return [json.loads(block.partition("data: ")[2]) for block in text.split("\n\n")[:-1]]


def check_events(events: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    """Check that the events of each item come in order, under one id and index, and agree with the final item."""
    index, texts = -1, [""] * len(output)
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            index += 1
        assert event["output_index"] == index
        item = output[index]
        assert event.get("item_id", item["id"]) == event.get("item", item)["id"] == item["id"]
        assert event.get("content_index", 0) == 0
        texts[index] += event.get("delta", "")
        if event["type"] == "response.output_item.done":
            assert event["item"] == item
    contents = [item.get("arguments") or "".join(part["text"] for part in item.get("content", ())) for item in output]
    assert texts == contents


def test_items_that_come_back(server: Any) -> None:
    """Output items that are sent again as input are listed unchanged."""
    first = answer(server, "/v1/responses", {**RESPONSE, **CALLS})
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"} for item in first["output"]
    ]
    history = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": ASK}, *first["output"]]
    body = {**RESPONSE, "input": [*history, *outputs, {"role": "assistant", "content": "Sunny."}, *history[:2]]}
    second = answer(server, "/v1/responses", body)
    path = f"/v1/responses/{second['id']}/input_items"
    listed = read(ResponseItemList, server.get(path, params={"order": "asc"}).json())
    assert len(listed.data) == len(body["input"]) and not listed.has_more
    assert [item["id"] for item in first["output"]] == [item.id for item in listed.data[2 : 2 + len(outputs)]]
    counted = read(InputTokenCountResponse, answer(server, "/v1/responses/input_tokens", body))
    assert counted.input_tokens == second["usage"]["input_tokens"]


def test_models(server: Any) -> None:
    page = server.get("/v1/models").json()
    read(SyncPage[Model], page)
    (model,) = page["data"]
    assert server.get(f"/v1/models/{model['id']}").json() == model


def test_files_and_batches(server: Any) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**CHAT, "max_tokens": 2}}
    wrong = {**line, "custom_id": "b", "body": {"messages": []}}
    content = "\n".join(map(json.dumps, (line, wrong))).encode()
    files, purpose = {"file": ("in.jsonl", content)}, {"purpose": "batch"}
    file = read(FileObject, server.client.post("/v1/files", files=files, data=purpose).json())
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = read(Batch, answer(server, "/v1/batches", body))

    def done() -> Any:
        current = read(Batch, server.get(f"/v1/batches/{batch.id}").json())
        return current if current.status == "completed" else None

    finished = until(done, "the batch is over")
    assert (finished.request_counts.completed, finished.request_counts.failed) == (1, 1)
    result = json.loads(server.get(f"/v1/files/{finished.output_file_id}/content").text)
    read(ChatCompletion, result["response"]["body"])
    read(SyncCursorPage[Batch], server.get("/v1/batches").json())
    read(SyncCursorPage[FileObject], server.get("/v1/files").json())
    for id in (file.id, finished.output_file_id, finished.error_file_id):
        assert read(FileDeleted, server.client.delete(f"/v1/files/{id}").json()).deleted


def test_embeddings(encoder: Any) -> None:
    response = read(CreateEmbeddingResponse, answer(encoder, "/v1/embeddings", {"input": ["a", "b"]}))
    assert [item.index for item in response.data] == [0, 1]
    with openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="None", max_retries=0) as client:
        for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            (vector, _) = client.embeddings.create(model="any", input=["a", "b"], **form).data
            values = vector.embedding
            assert isinstance(values, str) == (form.get("encoding_format") == "base64")
            assert isinstance(values, str) or values == pytest.approx(response.data[0].embedding, abs=1e-6)
        with pytest.raises(
            openai.BadRequestError, match="this model does not support the task generate; its tasks: embed"
        ):
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x"}])


@pytest.fixture(scope="module")
def client(guarded: Any) -> Iterator[openai.OpenAI]:
    """A client of a server with API keys, a strict model name and low limits."""
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="admin-key", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("call", "kind", "status", "param"),
    [
        (lambda api: api.chat.completions.create(model="demo", messages=[]), openai.BadRequestError, 400, "messages"),
        (lambda api: api.responses.create(model="demo", input=[]), openai.BadRequestError, 400, "input"),
        (lambda api: api.completions.create(model="demo", prompt="", n=2), openai.BadRequestError, 400, "prompt"),
        (lambda api: api.completions.create(model="other", prompt="a"), openai.NotFoundError, 404, "model"),
        (lambda api: api.models.retrieve("other"), openai.NotFoundError, 404, "model"),
        (lambda api: api.responses.retrieve("resp_0"), openai.NotFoundError, 404, "response_id"),
        (lambda api: api.with_options(api_key="x").models.list(), openai.AuthenticationError, 401, None),
        (lambda api: api.moderations.create(input="x"), openai.NotFoundError, 404, None),
        (lambda api: api.conversations.create(), openai.NotFoundError, 404, None),
        (lambda api: api.embeddings.create(model="demo", input="x"), openai.BadRequestError, 400, None),
    ],
    ids=["chat", "response", "completion", "model", "retrieve", "unknown", "key", "moderation", "conversation", "task"],
)  # fmt: skip
def test_errors_are_what_the_client_has_classes_for(
    client: openai.OpenAI, call: Any, kind: type[openai.APIStatusError], status: int, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        call(client)
    error: Any = caught.value
    assert (type(error), error.status_code, error.param) == (kind, status, param)
    assert error.type == kind.__name__ and error.code in (
        None,
        "invalid_api_key",
        "model_not_found",
        "response_not_found",
    )
    assert error.request_id and error.message


def test_a_request_has_an_id_that_raw_answers_show(client: openai.OpenAI) -> None:
    messages: Any = CHAT["messages"]
    raw = client.chat.completions.with_raw_response.create(model="demo", messages=messages, max_tokens=1)
    assert raw.request_id == raw.headers["x-request-id"] == raw.parse().id
    named = client.chat.completions.with_raw_response.create(
        model="demo", messages=messages, max_tokens=1, extra_headers={"X-Request-Id": "mine"}
    )
    assert named.request_id == "mine"
    with client.chat.completions.with_streaming_response.create(
        model="demo", messages=messages, max_tokens=1, stream=True
    ) as answer:
        assert answer.request_id
        answer.read()


@replayed
def test_a_full_queue_says_when_to_come_again(client: openai.OpenAI, guarded: Any) -> None:
    """The error for a full queue has the header that tells clients how long to wait before a retry."""
    long: dict[str, Any] = {"model": "demo", "prompt": "Once", "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    admin = {"Authorization": "Bearer admin-key"}
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(client.completions.create, **long) for _ in range(2)]
        try:
            info = functools.partial(guarded.client.get, "/server_info", headers=admin)
            wait_in_time(lambda: info().json()["waiting"] == 1, "one request runs and one waits")
            with pytest.raises(openai.InternalServerError) as caught:
                in_time(not client.completions.create(model="demo", prompt="a", max_tokens=1), "the queue is full")
        finally:
            guarded.client.post("/abort_request", json={"abort_all": True}, headers=admin)
        in_time(
            [future.result().choices[0].finish_reason for future in busy] == ["abort", "abort"], "neither has ended"
        )
    assert (caught.value.status_code, caught.value.type) == (503, "ServiceUnavailableError")
    assert caught.value.response.headers["retry-after"] == "1"
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).choices
