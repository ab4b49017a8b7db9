"""After all requests every KV slot is free or cached, and retraction changes no output."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

QUESTIONS = ["Tell me a story.", "Count from 1 to 10.", "List 3 countries and their capitals.", "Who are you?"]


def bodies(tokens: int) -> list[dict[str, Any]]:
    """Return requests that together need far more KV slots than the server ``narrow`` has."""
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [{"text": chat.format(question), "sampling_params": params} for question in QUESTIONS]


async def outputs(server: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
        answers = await asyncio.gather(*(client.post("/generate", json=body) for body in requests))
    assert [answer.status_code for answer in answers] == [200] * len(requests)
    return [answer.json() for answer in answers]


async def test_retraction_changes_no_output(server: Any, narrow: Any) -> None:
    requests = bodies(220)
    expected = await outputs(server, requests)
    actual = await outputs(narrow, requests)
    assert [answer["output_ids"] for answer in actual] == [answer["output_ids"] for answer in expected]
    assert [answer["text"] for answer in actual] == [answer["text"] for answer in expected]
    assert sum(answer["meta_info"]["num_retractions"] for answer in actual) > 0
    assert sum(answer["meta_info"]["num_retractions"] for answer in expected) == 0
    narrow.wait_whole()


async def test_a_stream_survives_retraction_without_repeating(server: Any, narrow: Any) -> None:
    requests = bodies(220)[:3]
    expected = await outputs(server, requests)

    async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[list[int], int]:
        tokens: list[int] = []
        retractions = 0
        async with client.stream("POST", "/generate", json={**body, "stream": True, "incremental": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = httpx.Response(200, content=line[6:]).json()
                    tokens += event["output_ids"]
                    retractions = event["meta_info"]["num_retractions"]
        return tokens, retractions

    async with httpx.AsyncClient(base_url=narrow.url, timeout=240) as client:
        streams = await asyncio.gather(*(stream(client, body) for body in requests))
    assert [tokens for tokens, _ in streams] == [answer["output_ids"] for answer in expected]
    assert sum(retractions for _, retractions in streams) > 0
    narrow.wait_whole()


async def test_random_traffic_loses_no_slot(narrow: Any) -> None:
    draw = random.Random(11)
    requests: list[dict[str, Any]] = []
    for _ in range(40):
        params = {"max_new_tokens": draw.randrange(1, 60), "temperature": draw.choice([0, 1]), "ignore_eos": True}
        params["stop"] = draw.choice([None, "e", [" the", "."]])
        ids = [draw.randrange(20, 4000) for _ in range(draw.randrange(1, 120))]
        logprobs = draw.random() < 0.3
        requests.append({"input_ids": ids, "sampling_params": params, "return_logprob": logprobs})
    answers = await outputs(narrow, requests)
    assert all(answer["meta_info"]["finish_reason"]["type"] in ("stop", "length") for answer in answers)
    narrow.wait_whole()
    assert narrow.info()["slots"]["cached"] > 0
    assert narrow.post("/flush_cache").status_code == 200
    slots = narrow.info()["slots"]
    assert slots["free"] == slots["capacity"]


def test_what_the_pool_cannot_hold_is_refused_and_what_it_can_is_served(narrow: Any) -> None:
    capacity = narrow.info()["slots"]["capacity"]
    assert capacity == 400
    refused = narrow.post("/generate", {"input_ids": [50] * 401})
    assert (refused.status_code, "does not fit the KV pool" in refused.json()["message"]) == (400, True)
    fits = narrow.generate({"input_ids": [50] * 399, "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}})
    assert fits["meta_info"]["completion_tokens"] == 1
    params = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
    long = narrow.generate({"input_ids": [50] * 20, "sampling_params": params})
    assert long["meta_info"]["finish_reason"]["type"] == "length"
    assert 300 < long["meta_info"]["completion_tokens"] <= 381
    narrow.wait_whole()


def test_cached_tokens_are_reported(narrow: Any) -> None:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    narrow.post("/flush_cache")
    first, second = (narrow.post("/v1/chat/completions", body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"]["cached_tokens"] == 14
