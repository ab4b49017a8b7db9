"""Checks of a server whose clients have left."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from .running_server import RunningServer

TIMES = 3
LIMITS = frozenset({"max_tokens", "max_new_tokens", "max_completion_tokens", "max_output_tokens"})
"""Fields that limit the output of a request."""
LONG = 600
"""Output tokens that clients ask for and do not wait for."""
GENERATED = "generation_tokens_total"
TIMEOUT_SECONDS = 120.0
IDLE_CHECKS = 10
"""Consecutive times that the server is seen idle: it may not have begun to serve a request whose client has left."""


def abandon(server: RunningServer, method: str, path: str, body: bytes | None) -> None:
    """Send a request several times, and leave."""
    for _ in range(TIMES):
        server.abandon(method, path, body)


def check_idle(server: RunningServer, seconds: float) -> None:
    """Check that the server serves nothing any more after ``seconds``, and is healthy."""
    deadline, idle_checks, busy = time.monotonic() + seconds, 0, 0
    while idle_checks < IDLE_CHECKS and time.monotonic() < deadline:
        busy = _running(server)
        idle_checks = 0 if busy else idle_checks + 1
        time.sleep(0.05)
    assert not busy, f"{busy} sequences are still served {seconds:.0f} s after their clients have left"
    health = server.send("GET", "/health")
    assert health.status == 200, f"after all requests /health answers {health.status}: {health.body[:200]!r}"


def check_ended(server: RunningServer, where: str, method: str, path: str, fields: Mapping[str, Any] | None) -> None:
    """Check that a long output is not generated for clients that have left."""
    long = _lengthened(fields or {})
    if long == fields:
        return
    before = _generated(server)
    abandon(server, method, path, json.dumps(long).encode())
    check_idle(server, TIMEOUT_SECONDS)
    tokens = _generated(server) - before
    assert tokens < TIMES * LONG / 2, (
        f"{where}: {tokens:.0f} tokens were generated for {TIMES} clients that left at once; use respond() or "
        "cancel_on_disconnect(), which end what nobody waits for"
    )


def _lengthened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with a higher limit of the output, if there is one."""
    return {
        name: LONG if name in LIMITS else _lengthened(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def _running(server: RunningServer) -> int:
    loads = server.send("GET", "/v1/loads").json()["loads"]
    return sum(int(load["num_total_reqs"]) for load in loads)


def _generated(server: RunningServer) -> float:
    """Return the number of output tokens since the start, as the metrics have it."""
    lines = server.send("GET", "/metrics").body.decode().splitlines()
    values = (line.rpartition(" ")[2] for line in lines if GENERATED in line and not line.startswith("#"))
    return sum(map(float, values))
