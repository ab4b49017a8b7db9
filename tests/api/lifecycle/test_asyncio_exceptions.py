"""A server that runs out of file descriptors logs that once instead of a thousand times."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_plug_api.lifecycle.asyncio_exceptions import LOG_INTERVAL, NO_RESOURCE, AsyncioExceptions


def test_that_connections_wait_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    times = (0.0, 0.1, LOG_INTERVAL - 0.1, LOG_INTERVAL, LOG_INTERVAL + 1)
    complain, loop = AsyncioExceptions(now=iter(times).__next__), asyncio.new_event_loop()
    context: dict[str, Any] = {"message": NO_RESOURCE, "exception": OSError(24, "Too many open files")}
    for _ in times:
        complain(loop, context)
    loop.close()
    assert len(caplog.records) == 2
    assert "Too many open files" in caplog.text and "ulimit -n" in caplog.text and "Traceback" not in caplog.text


def test_everything_else_is_told_every_time(caplog: pytest.LogCaptureFixture) -> None:
    complain, loop = AsyncioExceptions(), asyncio.new_event_loop()
    for _ in range(3):
        complain(loop, {"message": "something else"})
    loop.close()
    assert caplog.text.count("something else") == 3
