"""Answers with many log-probabilities: made in parts, with the same content, and no part of them twice."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from sglang_plug_api.answers import large_json
from sglang_plug_api.openai import additions
from sglang_plug_api.text.logprobs import TextOffsets

COMPLETION = {"prompt": ["What is this?", "abc"], "n": 2, "max_tokens": 6, "logprobs": 4}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "max_tokens": 6, "logprobs": True, "top_logprobs": 4}
GENERATE = {
    "text": ["What is this?", "abc"],
    "sampling_params": {"n": 2, "max_new_tokens": 6},
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 4,
    "token_ids_logprob": [65, 66],
    "return_text_in_logprobs": True,
}
RESPONSE = {"input": "What is this?", "max_output_tokens": 6, "top_logprobs": 4}
CHANGING = re.compile(r'"(created|created_at|completed_at)":\d+|"e2e_latency":[\d.e-]+|[0-9a-f]{32}')


CALLS = [
    ("/v1/completions", {**COMPLETION, "echo": True}),
    ("/v1/completions", {**COMPLETION, "return_meta_info": True}),
    ("/v1/chat/completions", CHAT),
    ("/generate", GENERATE),
    ("/v1/responses", RESPONSE),
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *CALLS,
        *((path, {**body, "stream": True}) for path, body in CALLS),
        ("/v1/completions", {**COMPLETION, "prompt_logprobs": 3}),
    ],
)
async def test_the_parts_make_the_same_answer(
    scripted_client: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    async def answer() -> str:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return CHANGING.sub("", response.text)

    client = scripted_client()
    monkeypatch.setattr(large_json, "PART", 1 << 20)
    at_once = await answer()
    monkeypatch.setattr(large_json, "PART", 8)
    assert await answer() == at_once
    assert "logprobs" in at_once


async def test_others_are_served_while_a_response_is_encoded(
    scripted_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(method: str, path: str, **more: Any) -> tuple[str, int]:
        """Return the answer, and how often other tasks had their turn meanwhile."""
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        serving = asyncio.ensure_future(others())
        response = await client.request(method, path, **more)
        serving.cancel()
        assert response.status_code == 200, response.text
        return response.text, turns

    client = scripted_client()
    body = {**RESPONSE, "max_output_tokens": 50}
    created, turns = await ask("POST", "/v1/responses", json=body)
    path = f"/v1/responses/{json.loads(created)['id']}"
    read, turns_of_read = await ask("GET", path)
    positions = len(json.loads(created)["output"][0]["content"][0]["logprobs"])
    monkeypatch.setattr(large_json, "PART", 1)
    assert positions > 10 and read == created
    again, turns_in_parts = await ask("GET", path)
    assert again == created and turns_in_parts >= turns_of_read + positions
    _, turns_in_parts = await ask("POST", "/v1/responses", json=body)
    assert turns_in_parts >= turns + 2 * positions  # of the answer, and of its size in the store


async def test_log_probabilities_of_a_prompt_are_made_once(
    scripted_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()
    entry = additions._prompt_entry

    def counted(item: Any, top: int, tokenizer: Any) -> Any:
        made.append(item.token)
        return entry(item, top, tokenizer)

    monkeypatch.setattr(additions, "_prompt_entry", counted)
    answer = (await scripted_client().post("/v1/completions", json={**COMPLETION, "prompt_logprobs": 3})).json()
    lists = [choice["prompt_logprobs"] for choice in answer["choices"]]
    assert lists[0] == lists[1] != lists[2] == lists[3]
    assert "".join(map(chr, made)) == "".join(COMPLETION["prompt"])


async def test_an_echoed_prompt_is_measured_once(scripted_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[str]()
    of_prompt = TextOffsets.of_prompt

    def counted(self: TextOffsets, tokens: Any) -> list[int]:
        measured.append("".join(map(chr, tokens)))
        return of_prompt(self, measured[-1].encode())

    monkeypatch.setattr(TextOffsets, "of_prompt", counted)
    answer = (await scripted_client().post("/v1/completions", json={**COMPLETION, "echo": True})).json()
    assert measured == COMPLETION["prompt"]
    for choice in answer["choices"]:
        length = len(COMPLETION["prompt"][choice["index"] // 2])
        assert choice["logprobs"]["text_offset"] == [*range(length + 6)]
