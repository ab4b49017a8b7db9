"""Chats with a schema: valid answers, and the generated tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chats import MAX_TOKENS, SCHEMA, TIMES, TOGETHER, Answer, measure, write_tokenizer
from sglang_plug.contracts.text.tokenizer import TokenizerSource
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer
from tests.benchmarks.asgi_server import Receive, Send, body_of, serving

GOOD = json.dumps({"name": "a", "age": 3, "city": "Rome", "tags": [], "active": True})


@pytest.mark.parametrize(("text", "valid"), [(GOOD, True), (GOOD.replace("3", "300"), False), (GOOD[:-1], False)])
def test_an_answer_is_held_against_the_schema(text: str, valid: bool) -> None:
    assert Answer(9, True, text).valid is valid


@pytest.mark.parametrize("schema", [False, True])
async def test_a_round(schema: bool) -> None:
    requests: list[dict[str, Any]] = []

    async def finish_every_other(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        assert scope["path"] == "/v1/chat/completions"
        requests.append(json.loads(await body_of(receive)))
        reason = "stop" if len(requests) % 2 else "length"
        choice = {"finish_reason": reason, "message": {"content": GOOD}}
        answer = {"choices": [choice], "usage": {"completion_tokens": 20}}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async with serving(finish_every_other) as url:
        result = await measure(url, "name", schema=schema, seed=5)
    count = TOGETHER * TIMES
    assert (result.chats, result.tokens, result.finished) == (count, 20 * count, count // 2)
    assert result.valid == (count // 2 if schema else 0) and result.rate > 0
    assert len({item["messages"][0]["content"] for item in requests}) == count
    for request in requests:
        assert request["max_tokens"] == MAX_TOKENS and ("ignore_eos" in request) is not schema
        assert not schema or request["response_format"]["json_schema"]["schema"] == SCHEMA


def test_the_tokenizer_is_one_that_the_server_takes(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 600)
    tokenizer = load_tokenizer(TokenizerSource(path=tmp_path))
    text = tokenizer.chat([{"role": "user", "content": "Hello {}"}])
    assert tokenizer.vocab_size == 600 and text == "<|im_start|>user\nHello {}<|im_end|>\n<|im_start|>assistant"
    assert tokenizer.decode(tokenizer.encode("Hello {}", special=False)) == "Hello {}"
