"""Tests of clients that disconnect before their answer has begun."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from .streaming import Streaming

MESSAGES = [{"role": "user", "content": "Hello"}]
WAITING = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "Hello"},
    "/generate": {"text": "Hello"},
}
URL = "https://images.example/cat.png"
CHAT = [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": URL}}]}]
ITEMS = [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]
FETCHING = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": ITEMS},
    "/v1/responses/input_tokens": {"input": ITEMS},
    "/generate": {"text": "?", "image_data": URL},
    "/tokenize": {"messages": CHAT},
}


class NeverFetched:
    """Prompts whose images never arrive."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def prompt(self, *_: Any) -> Any:
        await self._wait()

    @contextlib.asynccontextmanager
    async def fetched(self, images: Any) -> AsyncIterator[Any]:
        await self._wait()
        yield images

    async def _wait(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", FETCHING)
async def test_while_images_are_fetched(scripted_application: Any, path: str, stream: bool) -> None:
    images = NeverFetched()
    client = Streaming(scripted_application(image_prompts=images), path, {**FETCHING[path], "stream": stream})
    async with asyncio.timeout(60):
        await images.begun.wait()
        assert not images.ended.is_set()
        await client.leave()
    assert images.ended.is_set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/generate"])
async def test_while_others_are_served_first(scripted_application: Any, scripted: Any, path: str, stream: bool) -> None:
    scripted.pause.clear()
    client = Streaming(scripted_application(), path, {**WAITING[path], "stream": stream})
    async with asyncio.timeout(60):
        while not scripted.requests:
            await asyncio.sleep(0)
        assert scripted.aborted == []
        await client.leave()
    assert scripted.aborted == [scripted.requests[0].id]
