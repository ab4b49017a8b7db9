"""Answers with many log-probabilities are encoded in parts, with the same content, and each part only once."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug_api.answers import large_json
from tests.api.letters import Letters, LettersDecoder

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
        """Return the answer, and how often other tasks ran meanwhile."""
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
    assert turns_in_parts >= turns + 2 * positions  # for the answer, and for its size in the store


class CountingDecoder(LettersDecoder):
    """A decoder that counts the tokens it decodes."""

    def __init__(self, skip_special: bool, decoded: Counter[int]) -> None:
        super().__init__(skip_special)
        self._decoded = decoded

    def feed(self, tokens: Sequence[int]) -> str:
        self._decoded.update(tokens)
        return super().feed(tokens)


class CountingLetters(Letters):
    """A tokenizer that counts the tokens whose text is looked up or decoded."""

    def __init__(self) -> None:
        self.pieces, self.decoded = list[int](), Counter[int]()

    def piece(self, token: int) -> str:
        self.pieces.append(token)
        return super().piece(token)

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> CountingDecoder:
        return CountingDecoder(skip_special, self.decoded)


async def test_log_probabilities_of_a_prompt_are_made_once(scripted_client: Any) -> None:
    tokenizer, top = CountingLetters(), 3
    body = {"prompt": COMPLETION["prompt"], "n": 2, "max_tokens": 6, "prompt_logprobs": top}
    answer = (await scripted_client(tokenizer=tokenizer).post("/v1/completions", json=body)).json()
    lists = [choice["prompt_logprobs"] for choice in answer["choices"]]
    assert lists[0] == lists[1] != lists[2] == lists[3]
    predicted = [ord(letter) for prompt in COMPLETION["prompt"] for letter in prompt[1:]]
    texts = [text for token in predicted for text in (token, *range(token, token + top))]
    assert tokenizer.pieces == texts, "the token's own and those of the likeliest, for one output of each prompt"


async def test_an_echoed_prompt_is_measured_once(scripted_client: Any) -> None:
    decoded = []
    for count in (1, 2):
        tokenizer = CountingLetters()
        body = {**COMPLETION, "prompt": ["UVW", "XYZ"], "n": count, "echo": True}
        answer = (await scripted_client(tokenizer=tokenizer).post("/v1/completions", json=body)).json()
        for choice in answer["choices"]:
            assert choice["logprobs"]["text_offset"] == [*range(3 + 6)]
        decoded.append({letter: tokenizer.decoded[ord(letter)] for letter in "UVWXYZ"})
    assert decoded[0] == decoded[1] and min(decoded[0].values()) > 0
