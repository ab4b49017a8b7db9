"""Clients that leave before their answer has begun."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_plug_api.text.text_engine import TextEngine

MESSAGES = [{"role": "user", "content": "Hello"}]
WAITING = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "Hello"},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/generate": {"text": "Hello"},
    "/tokenize": {"messages": MESSAGES},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", WAITING)
def test_while_images_are_fetched(app: Any, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def never(*_: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(TextEngine, "with_images", never)

    async def leave() -> None:
        client = app.begin(path, {**WAITING[path], "stream": stream})
        async with asyncio.timeout(60):
            await begun.wait()
            await client.leave()

    app.run(leave())
    assert ended.is_set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/generate"])
def test_while_others_are_served_first(app: Any, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits(*_: Any, **__: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        yield

    monkeypatch.setattr(TextEngine, "stream", waits)

    async def leave() -> None:
        client = app.begin(path, {**WAITING[path], "stream": stream})
        async with asyncio.timeout(60):
            await begun.wait()
            await client.leave()

    app.run(leave())
    assert ended.is_set()
