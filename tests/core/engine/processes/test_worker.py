"""The inbox of an engine process."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sglang_plug.engine.processes.worker import SocketInbox


class SilentSocket:
    """A socket that receives nothing, and records the timeouts of its calls in milliseconds."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def poll(self, milliseconds: int) -> int:
        self.waits.append(milliseconds)
        return 0


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0, 0), (0.0001, 1), (0.0021, 3), (2.0, 2000)])
def test_the_inbox_waits_for_at_least_the_timeout(seconds: float, milliseconds: int) -> None:
    socket = SilentSocket()
    assert list(SocketInbox(cast(Any, socket)).take(wait=True, timeout=seconds)) == []
    assert socket.waits == [milliseconds]
