"""Tests of ``/v1/responses`` with ``background``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
BACKGROUND = {"input": FRANCE, "background": True, "temperature": 0}
LONG = {"input": "Tell me a story.", "background": True, "max_output_tokens": 3000, "ignore_eos": True}
OPEN = ("queued", "in_progress")


async def ended(app: Any, id: str) -> dict[str, Any]:
    """Poll a response until it has ended, as clients do."""
    while True:
        response: dict[str, Any] = (await app.client.get(f"/v1/responses/{id}")).json()
        if response["status"] not in OPEN and response["usage"] is not None:  # a cancelled one ends with its next token
            return response
        await asyncio.sleep(0.01)


async def start(app: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Create a response in the background."""
    answer = await app.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    return created


def events_of(text: str) -> list[dict[str, Any]]:
    """Parse a stream of events."""
    blocks = text.removesuffix("\n\n").split("\n\n")
    return [json.loads(block.split("\ndata: ")[1]) for block in blocks if block]


def test_polling(app: Any) -> None:
    async def work() -> Any:
        created = await start(app, BACKGROUND)
        return created, await ended(app, created["id"])

    created, final = app.run(work())
    assert (created["status"], created["background"], created["output"], created["usage"]) == ("queued", True, [], None)
    assert (final["status"], final["background"], final["id"]) == ("completed", True, created["id"])
    assert final["output"][0]["content"][0]["text"] == PARIS
    following = app.answer("/v1/responses", {"input": "And of Japan?", "previous_response_id": final["id"]})
    assert following["usage"]["input_tokens"] > final["usage"]["input_tokens"]
    assert app.is_whole()


def test_cancelling(app: Any) -> None:
    async def work(wait: bool) -> Any:
        id = (await start(app, LONG))["id"]
        while wait and (await app.client.get(f"/v1/responses/{id}")).json()["status"] == "queued":
            await asyncio.sleep(0.01)
        cancelled = (await app.client.post(f"/v1/responses/{id}/cancel")).json()
        return cancelled, await ended(app, id), await app.client.post(f"/v1/responses/{id}/cancel")

    for wait in (False, True):
        cancelled, final, again = app.run(work(wait))
        assert cancelled["status"] == final["status"] == again.json()["status"] == "cancelled"
        assert final["usage"]["output_tokens"] < 3000
    assert app.is_whole()


def test_deleting_while_it_is_made(app: Any) -> None:
    async def work() -> Any:
        id = (await start(app, LONG))["id"]
        while not app.engine.in_flight:
            await asyncio.sleep(0.01)
        deleted = await app.client.delete(f"/v1/responses/{id}")
        while app.engine.in_flight:
            await asyncio.sleep(0.01)
        return deleted.status_code, (await app.client.get(f"/v1/responses/{id}")).status_code

    assert app.run(work()) == (200, 404)
    assert app.is_whole()


def test_a_client_leaves_its_stream_and_reads_on_later(app: Any) -> None:
    async def work() -> Any:
        streaming = app.begin("/v1/responses", {**BACKGROUND, "stream": True})
        received = await streaming.until("response.output_text.delta")
        first = events_of(received.decode().rpartition("\n\n")[0])
        await streaming.leave()
        id = first[0]["response"]["id"]
        remaining = await app.client.get(
            f"/v1/responses/{id}?stream=true&starting_after={first[-1]['sequence_number']}"
        )
        whole = await app.client.get(f"/v1/responses/{id}?stream=true")
        return first, events_of(remaining.text), events_of(whole.text), await ended(app, id)

    first, remaining, whole, final = app.run(work())
    assert [event["type"] for event in first[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in first[:3]] == ["queued", "queued", "in_progress"]
    assert first + remaining == whole
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert (whole[-1]["type"], whole[-1]["response"]) == ("response.completed", final)
    assert "".join(event["delta"] for event in whole if event["type"] == "response.output_text.delta") == PARIS


def test_only_what_was_streamed_in_the_background_can_be_streamed_later(app: Any) -> None:
    id = app.answer("/v1/responses", {"input": FRANCE, "max_output_tokens": 1})["id"]
    refusal = app.get(f"/v1/responses/{id}?stream=true")
    assert refusal.status_code == 400 and "created with background and stream" in refusal.text
    assert app.get(f"/v1/responses/{id}?stream=false").status_code == 200
    assert app.get("/v1/responses/resp_unknown?stream=true").status_code == 404
    for query in ("starting_after=-2", "starting_after=x", "stream=perhaps"):
        assert app.get(f"/v1/responses/{id}?{query}").status_code == 400


def test_what_the_engine_refuses_becomes_a_failed_response(app: Any) -> None:
    async def work() -> Any:
        created = await start(app, {**BACKGROUND, "regex": "(" * 3})
        return await ended(app, created["id"])

    final = app.run(work())
    assert (final["status"], final["error"]["code"]) == ("failed", "invalid_prompt")
    assert "regex" in final["error"]["message"]


@pytest.mark.parametrize("limit", [0, 2])
def test_no_more_run_than_can_be_stored(apps: Callable[..., Any], limit: int) -> None:
    app = apps(max_stored_responses=limit)

    async def work() -> Any:
        ids = [(await start(app, LONG))["id"] for _ in range(limit)]
        refusal = await app.client.post("/v1/responses", json=LONG)
        for id in ids:
            await app.client.post(f"/v1/responses/{id}/cancel")
            await ended(app, id)
        return refusal

    refusal = app.run(work())
    assert refusal.json()["error"]["param"] == "background"
    assert refusal.status_code == (503 if limit else 400)
