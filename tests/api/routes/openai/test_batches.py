"""Tests of ``/v1/batches``, over an engine in this process."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

TIMEOUT = 240.0
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def app(apps: Callable[..., Any]) -> Iterator[Any]:
    """A running application that runs one sequence of a batch at a time."""
    app = apps(max_running_requests=2, max_batch_lines=60)
    lifespan = app.application.router.lifespan_context(app.application)
    app.run(lifespan.__aenter__())
    yield app
    app.run(lifespan.__aexit__(None, None, None))
    assert app.engine.in_flight == 0


def chat(number: int, **body: Any) -> dict[str, Any]:
    chat_body = {"messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": 2, **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/chat/completions", "body": chat_body}


def upload(app: Any, lines: list[Any]) -> str:
    content = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    files = {"file": ("in.jsonl", io.BytesIO(content))}
    answer = app.run(app.client.post("/v1/files", files=files, data={"purpose": "batch"}))
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def create(app: Any, input: str, **changes: Any) -> httpx.Response:
    body = {"input_file_id": input, "endpoint": CHAT, "completion_window": "24h", **changes}
    response: httpx.Response = app.post("/v1/batches", body)
    return response


def started(app: Any, lines: list[Any], **changes: Any) -> dict[str, Any]:
    answer = create(app, upload(app, lines), **changes)
    assert answer.status_code == 200, answer.text
    batch: dict[str, Any] = answer.json()
    return batch


def until(app: Any, id: str, *statuses: str) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT
    while (batch := app.get(f"/v1/batches/{id}").json())["status"] not in statuses:
        assert time.monotonic() < deadline, batch
        app.run(asyncio.sleep(0.01))
    finished: dict[str, Any] = batch
    return finished


def rows(app: Any, id: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in app.get(f"/v1/files/{id}/content").text.splitlines()] if id else []


def test_a_batch(app: Any) -> None:
    lines = [chat(number, temperature=0, max_tokens=6) for number in range(5)]
    batch = started(app, lines, metadata={"who": "me"})
    assert batch["id"].startswith("batch_")
    assert (batch["object"], batch["status"], batch["metadata"]) == ("batch", "validating", {"who": "me"})
    assert batch["expires_at"] == batch["created_at"] + 24 * 3600
    batch = until(app, batch["id"], "completed")
    assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert batch["output_file_id"].startswith("backend_result_file-") and batch["error_file_id"] is None
    results = rows(app, batch["output_file_id"])
    assert [result["custom_id"] for result in results] == [line["custom_id"] for line in lines]
    for line, result in zip(lines, results, strict=True):
        direct = app.answer(CHAT, line["body"])
        assert result["response"]["status_code"] == 200
        assert result["response"]["request_id"] == result["response"]["body"]["id"]
        assert result["response"]["body"]["choices"] == direct["choices"]
        assert result["response"]["body"]["usage"] == direct["usage"]
    usages = [result["response"]["body"]["usage"] for result in results]
    input, output = (sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens"))
    assert input > output > 0
    assert batch["usage"] == {
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input + output,
    }


def test_completions_and_bad_lines(app: Any) -> None:
    lines = [
        {"custom_id": "good", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}},
        {"custom_id": "bad", "method": "POST", "url": "/completions", "body": {"prompt": "a", "temperature": -1}},
        {"custom_id": "empty", "method": "POST", "url": "/completions", "body": {}},
        {"custom_id": "wide", "method": "POST", "url": "/completions", "body": {"prompt": ["a", "b"], "n": 3}},
    ]
    batch = until(app, started(app, lines, endpoint="/v1/completions")["id"], "completed")
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    errors = {row["custom_id"]: row for row in rows(app, batch["error_file_id"])}
    assert set(errors) == {"bad", "empty"}
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert {len(row["response"]["body"]["choices"]) for row in rows(app, batch["output_file_id"])} == {1, 6}


def test_a_file_with_faults(app: Any) -> None:
    batch = until(app, started(app, [chat(1), "{", chat(1), chat(2, stream=True)])["id"], "failed")
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("invalid_request", 4),
    ]
    assert batch["errors"]["object"] == "list"


def test_too_many_lines(app: Any) -> None:
    batch = until(app, started(app, [chat(number) for number in range(61)])["id"], "failed")
    assert batch["errors"]["data"][0]["code"] == "too_many_lines"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/responses"}, "endpoint"),
        ({"endpoint": "/flush_cache"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after"),
    ],
)
def test_wrong_requests(app: Any, changes: dict[str, Any], param: str) -> None:
    answer = create(app, upload(app, [chat(1)]), **changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_route_that_this_server_does_not_have(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(app.application.state.endpoints, CHAT)
    answer = create(app, upload(app, [chat(1)]))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "endpoint")


def test_a_route_that_the_model_cannot_serve(app: Any) -> None:
    answer = create(app, upload(app, [chat(1)]), endpoint="/v1/embeddings")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "endpoint")
    assert "every line of the batch would fail" in error["message"] and "--is-embedding" in error["message"]


def test_unknown_ids(app: Any) -> None:
    assert create(app, "backend_input_file-x").status_code == 404
    assert app.get("/v1/batches/batch_x").status_code == 404
    assert app.post("/v1/batches/batch_x/cancel").status_code == 404


def test_results_are_no_input(app: Any) -> None:
    batch = until(app, started(app, [chat(1)])["id"], "completed")
    answer = create(app, batch["output_file_id"])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_file_id")


def test_lines_that_were_aborted_with_all_requests_run_again(app: Any) -> None:
    batch = started(app, [chat(number, max_tokens=120, ignore_eos=True) for number in range(3)])

    async def abort_all() -> int:
        async with asyncio.timeout(TIMEOUT):
            while not app.engine.in_flight:
                await asyncio.sleep(0.001)
        answer = await app.client.post(
            "/update_weight_version", json={"new_version": app.engine.server.state.weight_version}
        )
        return int(answer.status_code)

    assert app.run(abort_all()) == 200
    batch = until(app, batch["id"], "completed")
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    bodies = [row["response"]["body"] for row in rows(app, batch["output_file_id"])]
    assert [body["choices"][0]["finish_reason"] for body in bodies] == ["length"] * 3
    assert [body["usage"]["completion_tokens"] for body in bodies] == [120] * 3


def test_a_line_with_more_sequences_than_the_queue_can_have_fails(apps: Callable[..., Any]) -> None:
    app = apps(max_running_requests=2, max_queued_requests=4)
    answer = app.post(CHAT, chat(1, n=7)["body"])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert "--max-queued-requests" in answer.text and "retry-after" not in answer.headers
    lifespan = app.application.router.lifespan_context(app.application)
    app.run(lifespan.__aenter__())
    batch = until(app, started(app, [chat(1, n=1), chat(2, n=7), chat(3, n=6)])["id"], "completed")
    app.run(lifespan.__aexit__(None, None, None))
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    (failed,) = rows(app, batch["error_file_id"])
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("line-2", 400)


def test_cancel(app: Any) -> None:
    batch = started(app, [chat(number, max_tokens=200, ignore_eos=True) for number in range(50)])
    assert app.run(app.client.delete(f"/v1/files/{batch['input_file_id']}")).status_code == 400
    assert app.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
    assert app.post(f"/v1/batches/{batch['id']}/cancel").status_code == 200
    batch = until(app, batch["id"], "cancelled")
    assert batch["cancelling_at"] and batch["cancelled_at"]
    assert len(rows(app, batch["output_file_id"])) == batch["request_counts"]["completed"] < 50
    assert app.run(app.client.delete(f"/v1/files/{batch['input_file_id']}")).json()["deleted"] is True
    assert app.is_whole()


def test_what_is_over_cannot_be_cancelled(app: Any) -> None:
    batch = until(app, started(app, [chat(1)])["id"], "completed")
    answer = app.post(f"/v1/batches/{batch['id']}/cancel")
    assert answer.status_code == 400
    assert "completed" in answer.json()["error"]["message"]
    assert app.get(f"/v1/batches/{batch['id']}").json() == batch


def test_list(app: Any) -> None:
    ids = [started(app, [chat(1)])["id"] for _ in range(3)]
    page = app.get("/v1/batches?limit=2").json()
    assert [item["id"] for item in page["data"]] == [ids[2], ids[1]] and page["has_more"]
    page = app.get(f"/v1/batches?limit=1&after={ids[1]}").json()
    assert [item["id"] for item in page["data"]] == [ids[0]]
    assert app.get("/v1/batches?limit=101").status_code == 400
    for id in ids:
        until(app, id, "completed")


def test_several_batches_together(app: Any) -> None:
    ids = [started(app, [chat(number) for number in range(4)])["id"] for _ in range(7)]
    for id in ids:
        batch = until(app, id, "completed")
        assert batch["request_counts"]["completed"] == 4


def test_an_interactive_request_goes_before_lines(app: Any) -> None:
    """The batch holds one of two running slots; the other is free for other requests."""
    batch = started(app, [chat(number, max_tokens=60, ignore_eos=True) for number in range(40)])
    until(app, batch["id"], "in_progress")
    for _ in range(3):
        app.answer(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
    batch = app.get(f"/v1/batches/{batch['id']}").json()
    assert batch["status"] == "in_progress"
    assert batch["request_counts"]["completed"] < 40
    app.post(f"/v1/batches/{batch['id']}/cancel")
    until(app, batch["id"], "cancelled")
