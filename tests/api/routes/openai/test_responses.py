"""Tests of ``/v1/responses``."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from sglang_plug import Output, Request
from tests.core.testing.replicas.faulty_clients import Wrapped

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
GREEDY = {"temperature": 0}
LONG: dict[str, Any] = {"max_output_tokens": 3000, "ignore_eos": True}
ORDER = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.output_text.delta", "response.output_text.done", "response.content_part.done",
    "response.output_item.done", "response.completed",
]  # fmt: skip


def create(app: Any, input: Any = FRANCE, **more: Any) -> dict[str, Any]:
    return app.answer("/v1/responses", {"model": "m", "input": input, **GREEDY, **more})


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return part["text"]


def parsed(stream: str) -> list[dict[str, Any]]:
    """Return the events of a stream, and check their names and sequence numbers."""
    *blocks, last = stream.split("\n\n")
    assert last == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        events.append(event)
    return events


def stream(app: Any, input: Any = FRANCE, **more: Any) -> list[dict[str, Any]]:
    answer = app.post("/v1/responses", {"model": "m", "input": input, "stream": True, **GREEDY, **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parsed(answer.text)


def test_a_text(app: Any) -> None:
    response = create(app, metadata={"a": "b"}, user="u", max_output_tokens=40)
    assert text_of(response) == PARIS
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "m")
    assert response["id"].startswith("resp_") and response["output"][0]["id"].startswith("msg_")
    assert response["output"][0]["status"] == "completed"
    assert response["created_at"] <= response["completed_at"]
    assert (response["metadata"], response["user"], response["max_output_tokens"]) == ({"a": "b"}, "u", 40)
    assert (response["temperature"], response["store"], response["error"]) == (0, True, None)
    usage = response["usage"]
    chat = app.answer("/v1/chat/completions", {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0})
    assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == chat["usage"]["completion_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        assert usage[name] == usage[other], "clients of chats read the other spelling"
        assert usage[f"{other}_details"].items() <= usage[f"{name}_details"].items()
    assert app.is_whole()


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": FRANCE},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": FRANCE}]},
    ],
)
def test_items_are_messages(app: Any, item: dict[str, Any]) -> None:
    plain, response = create(app), create(app, [item])
    assert (text_of(response), response["usage"]) == (PARIS, plain["usage"])


def test_a_conversation_in_the_input(app: Any) -> None:
    """Output items of an earlier response can be sent back unchanged as input."""
    first = create(app)
    turns = [{"role": "user", "content": FRANCE}, *first["output"], {"role": "user", "content": "And of Japan?"}]
    messages = [{"role": "user", "content": FRANCE}, {"role": "assistant", "content": PARIS}, turns[-1]]
    chat = app.answer("/v1/chat/completions", {"messages": messages, "temperature": 0})
    response = create(app, turns)
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert text_of(response) == chat["choices"][0]["message"]["content"]


def test_instructions_are_the_system_message(app: Any) -> None:
    system = [{"role": "system", "content": "Be brief.\n\nBe kind."}, {"role": "user", "content": FRANCE}]
    count = app.answer("/tokenize", {"messages": system})["count"]
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": FRANCE}]
    response = create(app, items, instructions="Be brief.")
    assert (response["usage"]["input_tokens"], response["instructions"]) == (count, "Be brief.")


def test_the_token_limit(app: Any) -> None:
    response = create(app, max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (response["usage"]["output_tokens"], response["output"][0]["status"]) == (2, "incomplete")
    assert response["completed_at"] is None
    assert PARIS.startswith(text_of(response))


def test_native_sampling_parameters(app: Any) -> None:
    assert text_of(create(app, stop="France")) == "The capital of "
    assert text_of(create(app, stop="France", no_stop_trim=True)) == "The capital of France"
    assert text_of(create(app, regex="Rome|Oslo")) in ("Rome", "Oslo")
    story = {"temperature": 1, "max_output_tokens": 12}
    first, again, other = (text_of(create(app, "Tell me a story.", **story, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_stream(app: Any) -> None:
    events = stream(app, max_output_tokens=40)
    kinds = [event["type"] for event in events]
    assert [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]] == ORDER
    assert kinds.count("response.output_text.delta") > 1
    created, _, added, part, *_ = events
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert created["response"]["usage"] is None
    assert (added["item"]["status"], added["item"]["content"]) == ("in_progress", [])
    assert part["part"]["text"] == ""
    assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == PARIS
    assert events[-4]["text"] == events[-3]["part"]["text"] == PARIS
    final = events[-1]["response"]
    assert final["id"] == created["response"]["id"]
    assert final["output"] == [events[-2]["item"]]
    assert {event["item_id"] for event in events if "item_id" in event} == {final["output"][0]["id"]}
    whole = create(app, max_output_tokens=40)
    own = {"id", "created_at", "completed_at", "output"}
    assert {key: final[key] for key in final if key not in own} == {key: whole[key] for key in whole if key not in own}
    assert app.get(f"/v1/responses/{final['id']}").json() == final


def test_a_stream_that_reaches_the_limit(app: Any) -> None:
    final = stream(app, max_output_tokens=2)[-1]
    assert (final["type"], final["response"]["status"]) == ("response.incomplete", "incomplete")


def test_the_next_turn(app: Any) -> None:
    first = create(app, instructions="Answer.")
    second = create(app, "And of Japan?", previous_response_id=first["id"])
    third = stream(app, "And of Italy?", previous_response_id=second["id"])[-1]["response"]
    turns = [FRANCE, text_of(first), "And of Japan?", text_of(second), "And of Italy?"]
    roles = ["user", "assistant"] * 3
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    for response, count in ((second, 3), (third, 5)):
        expected = app.answer("/tokenize", {"messages": messages[:count]})["count"]
        assert response["usage"]["input_tokens"] == expected, "instructions are not carried over"
    assert third["previous_response_id"] == second["id"]


def test_two_branches_from_one_response(app: Any) -> None:
    root = create(app)
    first, second = (create(app, text, previous_response_id=root["id"]) for text in ("And of Japan?", "And of Italy?"))
    assert first["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    assert text_of(first) != text_of(second)


def test_retrieve_and_delete(app: Any) -> None:
    response = create(app)
    path = f"/v1/responses/{response['id']}"
    assert app.get(path).json() == response
    refusal = app.refusal(f"{path}/cancel", {})
    assert (refusal["message"], refusal["param"]) == (
        "a response that has ended as completed cannot be cancelled", "response_id",
    )  # fmt: skip
    assert app.get(path).json() == response, "nothing has changed"
    deleted = app.run(app.client.delete(path))
    assert deleted.json() == {"id": response["id"], "object": "response", "deleted": True}
    for gone in (app.get(path), app.post(f"{path}/cancel"), app.run(app.client.delete(path))):
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")
    assert app.refusal("/v1/responses", {"input": "x", "previous_response_id": response["id"]})["code"] == (
        "previous_response_not_found"
    )


def test_log_probabilities(app: Any) -> None:
    plain = create(app)["output"][0]["content"][0]
    assert plain["logprobs"] == []
    for fields, top in (({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 2}, 2)):
        (part,) = create(app, **fields)["output"][0]["content"]
        assert "".join(entry["token"] for entry in part["logprobs"]).startswith(PARIS)
        assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == top for entry in part["logprobs"])
    chat = app.answer(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": FRANCE}], "logprobs": True, "top_logprobs": 2, **GREEDY},
    )
    theirs = chat["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == [entry["token"] for entry in theirs]


def test_the_items_of_a_request(app: Any) -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": "Hello"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
        {"role": "user", "content": FRANCE},
    ]
    path = f"/v1/responses/{create(app, items)['id']}/input_items"
    page = app.get(path, params={"order": "asc"}).json()
    assert [item["type"] for item in page["data"]] == [
        "message", "message", "reasoning", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert (page["object"], page["has_more"]) == ("list", False)
    ids = [item["id"] for item in page["data"]]
    assert (ids[2], ids[3], len(set(ids))) == ("rs_1", "msg_1", 7)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "Be brief."}]
    assert page["data"][3]["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert [item["id"] for item in app.get(path).json()["data"]] == ids[::-1]
    second = app.get(path, params={"after": ids[-1], "limit": 2}).json()
    assert ([item["id"] for item in second["data"]], second["has_more"]) == (ids[4:6][::-1], True)
    assert app.get(path, params={"after": ids[0]}).json()["data"] == []
    for params in ({"after": "nobody"}, {"limit": 0}, {"order": "up"}):
        answer = app.get(path, params=params)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(params)))


def test_items_of_a_text_and_of_no_response(app: Any) -> None:
    first = create(app)["id"]
    second = create(app, "And of Japan?", previous_response_id=first)["id"]
    (item,) = app.get(f"/v1/responses/{second}/input_items").json()["data"]
    assert item["content"] == [{"type": "input_text", "text": "And of Japan?"}]
    assert app.get("/v1/responses/resp_0/input_items").status_code == 404
    assert app.get(f"/v1/responses/{create(app, store=False)['id']}/input_items").status_code == 404


def test_counting_tokens(app: Any) -> None:
    for fields in ({}, {"instructions": "Be brief."}, {"tools": [{"type": "function", "name": "clock"}]}):
        body = {"input": FRANCE, **fields}
        counted = app.answer("/v1/responses/input_tokens", body)
        used = app.answer("/v1/responses", {**body, "max_output_tokens": 1})["usage"]["input_tokens"]
        assert counted == {"object": "response.input_tokens", "input_tokens": used}
    assert app.refusal("/v1/responses/input_tokens", {"input": ""})["param"] == "input"


def test_not_stored(app: Any) -> None:
    response = create(app, store=False)
    assert response["store"] is False
    assert app.get(f"/v1/responses/{response['id']}").status_code == 404


def test_the_least_recently_used_is_forgotten(apps: Callable[..., Any]) -> None:
    app = apps(max_stored_responses=2)
    first, second = create(app)["id"], create(app)["id"]
    app.get(f"/v1/responses/{first}")
    third = create(app)["id"]
    statuses = [app.get(f"/v1/responses/{response_id}").status_code for response_id in (first, second, third)]
    assert statuses == [200, 404, 200]


def test_nothing_is_stored_if_the_operator_says_so(apps: Callable[..., Any]) -> None:
    app = apps(max_stored_responses=0)
    response = create(app)
    assert response["store"] is False
    assert app.get(f"/v1/responses/{response['id']}").status_code == 404


async def running_response(app: Any, **more: Any) -> tuple[str, Any]:
    """Start a response; return its id and its stream."""
    streaming = app.begin("/v1/responses", {"input": "Tell me a story.", "stream": True, **LONG, **more})
    received = await streaming.until("response.output_text.delta")
    created = json.loads(received.split(b"\n\n")[0].split(b"data: ")[1])
    return created["response"]["id"], streaming


def test_cancel(app: Any) -> None:
    async def work() -> Any:
        id, streaming = await running_response(app)
        retrieved = (await app.client.get(f"/v1/responses/{id}")).json()
        early = await app.client.post("/v1/responses", json={"input": "x", "previous_response_id": id})
        cancelled = (await app.client.post(f"/v1/responses/{id}/cancel")).json()
        return retrieved, early, cancelled, await streaming.end()

    retrieved, early, cancelled, received = app.run(work())
    final = parsed(received.decode())[-1]
    assert (retrieved["status"], retrieved["usage"], retrieved["output"][0]["status"]) == (
        "in_progress",
        None,
        "in_progress",
    )
    assert early.status_code == 400 and "still in progress" in early.json()["error"]["message"]
    assert cancelled["status"] == "cancelled"
    assert (final["type"], final["response"]["status"]) == ("response.incomplete", "cancelled")
    assert 0 < final["response"]["usage"]["output_tokens"] < 3000
    assert app.get(f"/v1/responses/{final['response']['id']}").json() == final["response"]
    assert app.is_whole()


@pytest.mark.parametrize("store", [False, True])
def test_a_client_that_leaves(app: Any, store: bool) -> None:
    async def work() -> Any:
        id, streaming = await running_response(app, store=store)
        await streaming.leave()
        return await app.client.get(f"/v1/responses/{id}")

    answer = app.run(work())
    assert app.is_whole()
    assert answer.status_code == (200 if store else 404)
    if store:
        response = answer.json()
        assert response["status"] == "cancelled"
        assert text_of(response)


def test_delete_while_it_is_made(app: Any) -> None:
    async def work() -> Any:
        id, streaming = await running_response(app)
        deleted = await app.client.delete(f"/v1/responses/{id}")
        received = await streaming.end()
        return deleted, received.decode(), await app.client.get(f"/v1/responses/{id}")

    deleted, received, gone = app.run(work())
    assert (deleted.status_code, gone.status_code) == (200, 404)
    assert parsed(received)[-1]["response"]["status"] == "cancelled"


def test_abort_request_cancels(app: Any) -> None:
    async def work() -> Any:
        id, streaming = await running_response(app)
        await app.client.post("/abort_request", json={"rid": id})
        return await streaming.end()

    assert parsed(app.run(work()).decode())[-1]["response"]["status"] == "cancelled"


def test_truncation(apps: Callable[..., Any]) -> None:
    app = apps(context_length=128)
    turns = []
    for number in range(12):
        turns += [{"role": "user", "content": f"Question {number}?"}, {"role": "assistant", "content": "An answer."}]
    turns.append({"role": "user", "content": FRANCE})
    body = {"input": turns, "instructions": "Be brief.", "max_output_tokens": 20}
    assert "context length" in app.refusal("/v1/responses", body)["message"]
    response = app.answer("/v1/responses", {**body, "truncation": "auto"})
    system = {"role": "system", "content": "Be brief."}
    counts = [app.answer("/tokenize", {"messages": [system, *turns[start:]]})["count"] for start in range(0, 25, 2)]
    assert response["usage"]["input_tokens"] == next(count for count in counts if count + 20 <= 128)
    short = app.answer("/v1/responses", {"input": FRANCE, "truncation": "auto"})
    assert short["usage"]["input_tokens"] == app.answer("/tokenize", {"messages": turns[-1:]})["count"]
    endless = {"input": "very " * 500, "truncation": "auto"}
    assert "longer than" in app.refusal("/v1/responses", endless)["message"]


def test_stream_options_need_a_stream(app: Any) -> None:
    options = {"stream_options": {"include_obfuscation": False}}
    assert "stream_options" in app.refusal("/v1/responses", {"input": FRANCE, **options})["message"]
    assert stream(app, **options)[-1]["response"]["status"] == "completed"


def test_fields_that_change_nothing_pass(app: Any) -> None:
    harmless = {
        "tools": [], "tool_choice": "auto",
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "text"}}, "background": False, "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": True,
        "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s", "truncation": None,
        "top_logprobs": 0, "store": None, "metadata": None,
    }  # fmt: skip
    response = create(app, **harmless)
    assert (text_of(response), response["metadata"], response["truncation"]) == (PARIS, {}, "disabled")


class FailsInTheMiddle(Wrapped):
    """An engine client that fails after the first output of a request while ``fails`` is set."""

    fails = False

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        async with aclosing(super().submit(request)) as outputs:
            async for output in outputs:
                yield output
                if self.fails:
                    raise RuntimeError("secret")


def test_an_engine_that_fails_in_the_middle(apps: Callable[..., Any]) -> None:
    app = apps(client=FailsInTheMiddle, max_stored_responses=3)
    app.engine.client.fails = True
    events = stream(app)
    app.engine.client.fails = False
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "failed")
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "secret" not in json.dumps(events)
    id = events[-1]["response"]["id"]
    assert app.get(f"/v1/responses/{id}").json() == events[-1]["response"]
    assert "failed" in app.refusal("/v1/responses", {"input": "x", "previous_response_id": id})["message"]
    assert app.is_whole()


@pytest.mark.parametrize("stream", [False, True])
def test_a_format_constrains_the_text(app: Any, stream: bool) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    format = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
    body = {"input": FRANCE, "text": {"format": format}, "temperature": 0, "max_output_tokens": 40}
    if stream:
        answer = app.post("/v1/responses", {**body, "stream": True}).text
        (last,) = [line for line in answer.splitlines() if line.startswith("data: ") and "response.completed" in line]
        response = json.loads(last.removeprefix("data: "))["response"]
    else:
        response = app.answer("/v1/responses", body)
    assert response["text"]["format"] == format
    assert json.loads(text_of(response)) == {"city": "Paris"}
