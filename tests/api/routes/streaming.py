"""A streaming client of an application in the same event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Streaming:
    """One answer that is read as it arrives, by a client that may disconnect."""

    def __init__(self, application: Any, path: str, body: Any) -> None:
        self._raw = json.dumps(body).encode()
        self.received = b""
        self._news, self._left, self._asked = asyncio.Event(), asyncio.Event(), False
        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": headers, "http_version": "1.1", "scheme": "http", "server": ("test", 80), "root_path": ""}
        self.task = asyncio.ensure_future(application(scope, self._receive, self._send))

    async def until(self, text: str) -> bytes:
        """Wait until ``text`` was received, and return everything received so far."""
        while text.encode() not in self.received:
            assert not self.task.done(), self.received
            self._news.clear()
            await self._news.wait()
        return self.received

    async def end(self) -> bytes:
        """Wait for the end of the answer, and return everything received."""
        await self.task
        return self.received

    async def leave(self) -> None:
        """Close the connection, and wait until the application has ended."""
        self._left.set()
        await self.task

    async def _receive(self) -> dict[str, Any]:
        if self._asked:
            await self._left.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request", "body": self._raw, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        self.received += message.get("body", b"")
        self._news.set()
