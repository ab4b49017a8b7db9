"""Tests of ``/abort_request``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

LONG: dict[str, Any] = {"max_new_tokens": 3000, "ignore_eos": True}
STORY = [{"role": "user", "content": "Tell me a story."}]


def native(rid: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/generate", {"text": "Once", "rid": rid, "sampling_params": LONG, **more}


def chat(rid: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": STORY, "rid": rid, "max_tokens": 3000, "ignore_eos": True, **more}


def events(response: httpx.Response) -> list[Any]:
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def until_running(app: Any, count: int, tasks: list[asyncio.Future[httpx.Response]]) -> None:
    """Wait until so many sequences are in flight and several tokens have been generated."""
    while app.engine.in_flight < count or (await app.engine.client.control("info"))["slots"]["running"] < 64:
        assert not all(task.done() for task in tasks), [task.result().text for task in tasks]
        await asyncio.sleep(0.002)


def run_and_abort(app: Any, calls: list[tuple[str, dict[str, Any]]], abort: dict[str, Any], sequences: int) -> Any:
    """Start ``calls``, and abort once ``sequences`` are in flight; return the answers of the calls and of the abort."""

    async def work() -> Any:
        tasks = [asyncio.ensure_future(app.client.post(path, json=body)) for path, body in calls]
        await until_running(app, sequences, tasks)
        aborted = await app.client.post("/abort_request", json=abort)
        return [await task for task in tasks], aborted

    answers, aborted = app.run(work())
    assert aborted.status_code == 200, aborted.text
    assert app.is_whole()
    return answers, aborted.json()["aborted"]


def test_a_native_answer_ends_with_what_it_has(app: Any) -> None:
    (answer,), count = run_and_abort(app, [native("a")], {"rid": "a"}, 1)
    meta = answer.json()["meta_info"]
    assert count == 1
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["finish_reason"]["message"]
    assert set(meta["finish_reason"]) == {"type", "message", "status_code", "err_type"}
    assert 0 < meta["completion_tokens"] < 3000
    assert len(answer.json()["output_ids"]) == meta["completion_tokens"]
    assert app.engine.tokenizer.decode(answer.json()["output_ids"]) == answer.json()["text"]


def test_a_native_stream(app: Any) -> None:
    (answer,), _ = run_and_abort(app, [native("a", stream=True)], {"rid": "a"}, 1)
    chunks = events(answer)
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_chat(app: Any) -> None:
    (answer,), _ = run_and_abort(app, [chat("a")], {"rid": "a"}, 1)
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert choice["message"]["content"]


def test_a_chat_stream(app: Any) -> None:
    (answer,), _ = run_and_abort(app, [chat("a", stream=True)], {"rid": "a"}, 1)
    reasons = [choice["finish_reason"] for event in events(answer) for choice in event["choices"]]
    assert reasons[-1] == "abort"
    assert set(reasons[:-1]) == {None}


def test_every_sequence_of_a_request(app: Any) -> None:
    (answer,), count = run_and_abort(app, [chat("a", n=3)], {"rid": "a"}, 3)
    assert count == 3
    assert [choice["finish_reason"] for choice in answer.json()["choices"]] == ["abort"] * 3
    batch = native("b", text=["One", "Two"], sampling_params={**LONG, "n": 2})
    (answer,), count = run_and_abort(app, [batch], {"rid": "b"}, 4)
    assert count == 4
    assert {output["meta_info"]["finish_reason"]["type"] for output in answer.json()} == {"abort"}


def test_one_prompt_of_a_batch(app: Any) -> None:
    short = {"max_new_tokens": 2}
    batch = native(["b", "c"], text=["One", "Two"], sampling_params=[LONG, short])
    (answer,), count = run_and_abort(app, [batch], {"rid": "b"}, 1)
    assert count == 1
    assert [output["meta_info"]["finish_reason"]["type"] for output in answer.json()] == ["abort", "length"]


def test_only_the_request_with_exactly_this_id(app: Any) -> None:
    others = [native(rid, sampling_params={**LONG, "max_new_tokens": 150}) for rid in ("a1", "1a", "A", "a-b")]
    answers, count = run_and_abort(app, [native("a"), *others], {"rid": "a"}, 5)
    assert count == 1
    assert [answer.json()["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort", *["length"] * 4]


def test_one_that_waits_in_the_queue(apps: Callable[..., Any]) -> None:
    app = apps(max_running_requests=1)

    async def work() -> Any:
        first, second = (app.client.post(path, json=body) for path, body in (native("first"), native("second")))
        tasks = [asyncio.ensure_future(first)]
        await until_running(app, 1, tasks)
        tasks.append(asyncio.ensure_future(second))
        await until_running(app, 2, tasks)
        await app.client.post("/abort_request", json={"rid": "second"})
        ended = await tasks[1]
        still_running = not tasks[0].done()
        await app.client.post("/abort_request", json={"rid": "first"})
        await tasks[0]
        return still_running, ended.json()

    still_running, second = app.run(work())
    assert still_running
    assert (second["text"], second["output_ids"]) == ("", [])
    assert second["meta_info"]["finish_reason"]["type"] == "abort"
    assert app.is_whole()


def test_all(app: Any) -> None:
    answers, count = run_and_abort(app, [native("a"), native("b"), chat("c")], {"abort_all": True}, 3)
    assert count == 3
    assert all("abort" in answer.text for answer in answers)


def test_an_id_can_be_used_again(app: Any) -> None:
    for _ in range(3):
        (answer,), _ = run_and_abort(app, [native("again")], {"rid": "again"}, 1)
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"


def test_nothing_to_abort(app: Any) -> None:
    assert app.answer("/abort_request", {"rid": "nobody"}) == {"aborted": 0}
    assert app.answer("/abort_request", {"rid": "", "abort_all": True}) == {"aborted": 0}


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": None, "abort_all": False}])
def test_an_empty_id_is_refused(app: Any, body: dict[str, Any]) -> None:
    assert "rid is empty" in app.refusal("/abort_request", body)["message"]


def test_all_needs_the_admin_key(apps: Callable[..., Any]) -> None:
    app = apps(api_key="user", admin_api_key="root")

    def status(key: str, body: dict[str, Any]) -> int:
        return app.post("/abort_request", body, headers={"authorization": f"Bearer {key}"}).status_code

    assert app.post("/abort_request", {"rid": "x"}).status_code == 401
    assert status("user", {"rid": "x"}) == status("root", {"rid": "x"}) == 200
    assert status("user", {"abort_all": True}) == 401
    assert status("root", {"abort_all": True}) == 200


@pytest.mark.parametrize(
    "call", [chat("a", n=2), native("a", text=["One", "Two"]), native(["a", "b"], text=["One", "Two"]), native("a")]
)
def test_errors_name_a_duplicate_by_the_id_that_the_client_sent(app: Any, call: tuple[str, dict[str, Any]]) -> None:
    path, body = call

    async def work() -> httpx.Response:
        task = asyncio.ensure_future(app.client.post(path, json=body))
        await until_running(app, 1, [task])
        refused = await app.client.post(path, json=body)
        await app.client.post("/abort_request", json={"abort_all": True})
        await task
        return refused

    refused = app.run(work())
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "Duplicate request ID: 'a' is still being served"
