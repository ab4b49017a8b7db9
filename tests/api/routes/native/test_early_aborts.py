"""``/abort_request`` for requests whose prompts are still being made."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from sglang_plug import MediaLimits, MediaPrompt
from sglang_plug_api.multimodal.image_prompts import ImagePrompts
from tests.api.letters import Letters

MESSAGES = [{"role": "user", "content": "Hello"}]
LONG = "x" * 30_000
"""A text that is tokenized in a thread."""


class SlowTokenizer(Letters):
    """A tokenizer that waits until ``go_on`` is set, and sets ``begun`` before."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self._wait()
        return super().encode(text[:9], special=special)

    def chat(self, messages: Sequence[Any], **options: Any) -> str:
        self._wait()
        return super().chat(messages, **options)

    def _wait(self) -> None:
        self.begun.set()
        assert self.go_on.wait(60)


@pytest.fixture
def tokenizer() -> SlowTokenizer:
    return SlowTokenizer()


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES, "rid": "a"}),
    ("/v1/chat/completions", {"messages": MESSAGES, "request_id": "a", "stream": True}),
    ("/v1/completions", {"prompt": LONG, "rid": "a"}),
    ("/generate", {"text": LONG, "rid": "a"}),
    ("/generate", {"text": [LONG, LONG], "rid": "a", "stream": True}),
]


async def aborted_while_tokenized(
    client: httpx.AsyncClient, tokenizer: SlowTokenizer, call: tuple[str, dict[str, Any]], abort: dict[str, Any]
) -> tuple[httpx.Response, int]:
    """Send a call, abort while it is tokenized; return its answer, and how many the abort has ended."""
    path, body = call
    task = asyncio.ensure_future(client.post(path, json=body))
    await asyncio.to_thread(tokenizer.begun.wait, 60)
    response = await client.post("/abort_request", json=abort)
    tokenizer.go_on.set()
    count: int = response.json()["aborted"]
    return await task, count


@pytest.mark.parametrize("abort", [{"rid": "a"}, {"abort_all": True}])
@pytest.mark.parametrize("call", CALLS)
async def test_a_request_that_is_tokenized(
    scripted_client: Any, scripted: Any, tokenizer: SlowTokenizer, call: Any, abort: Any
) -> None:
    client = scripted_client(tokenizer=tokenizer)
    answer, count = await aborted_while_tokenized(client, tokenizer, call, abort)
    assert (answer.status_code, count, scripted.requests) == (200, 1, [])
    assert '"abort"' in answer.text and '"stop"' not in answer.text
    assert (await client.post("/abort_request", json=abort)).json() == {"aborted": 0}
    again = await client.post(call[0], json=call[1])
    assert scripted.requests and '"abort"' not in again.text


async def test_one_prompt_of_several(scripted_client: Any, scripted: Any, tokenizer: SlowTokenizer) -> None:
    client, body = scripted_client(tokenizer=tokenizer), {"text": [LONG, LONG], "rid": ["a", "b"]}
    answer, count = await aborted_while_tokenized(client, tokenizer, ("/generate", body), {"rid": "b"})
    reasons = [output["meta_info"]["finish_reason"]["type"] for output in answer.json()]
    assert (count, reasons) == (1, ["stop", "abort"])


async def test_a_response(scripted_client: Any, scripted: Any, tokenizer: SlowTokenizer) -> None:
    client = scripted_client(tokenizer=tokenizer)
    answer, count = await aborted_while_tokenized(
        client, tokenizer, ("/v1/responses", {"input": "Hello"}), {"abort_all": True}
    )
    assert (answer.json()["status"], count, scripted.requests) == ("cancelled", 1, [])


async def test_only_the_request_with_this_id(scripted_client: Any, scripted: Any, tokenizer: SlowTokenizer) -> None:
    client = scripted_client(tokenizer=tokenizer)
    answer, count = await aborted_while_tokenized(client, tokenizer, CALLS[0], {"rid": "b"})
    assert (count, answer.json()["choices"][0]["finish_reason"]) == (0, "stop")


class SlowSources:
    """Images that never arrive."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), False

    async def fetch_images(self, images: Any) -> Any:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


class NoProcessor:
    """A media processor of texts without images."""

    def prompt(self, tokens: Sequence[int], files: Any) -> MediaPrompt:
        return MediaPrompt(list(tokens), ())


@pytest.mark.parametrize("abort", [{"rid": "a"}, {"abort_all": True}])
async def test_a_request_whose_images_are_fetched(scripted_client: Any, scripted: Any, abort: Any) -> None:
    sources: Any = SlowSources()
    processor: Any = NoProcessor()
    limits = MediaLimits(count=4, bytes=1 << 20)
    client = scripted_client(image_prompts=ImagePrompts(processor, limits, sources))
    body = {"text": "x", "image_data": "http://example.org/a.png", "rid": "a"}
    task = asyncio.ensure_future(client.post("/generate", json=body))
    await sources.begun.wait()
    response = await client.post("/abort_request", json=abort)
    answer = await task
    assert (answer.status_code, response.json(), sources.cancelled) == (400, {"aborted": 1}, True)
    assert "aborted" in json.loads(answer.text)["error"]["message"] and scripted.requests == []
