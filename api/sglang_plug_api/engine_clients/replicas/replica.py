"""One engine of a group, and the load that was routed to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from sglang_plug import EngineClient, Output, ReplicaStatus, Request, StepStats

DECODE, PREFILL = "decode", "prefill"


@dataclass(slots=True)
class Replica:
    """One engine of a group, and the load that was routed to it."""

    replica: int
    client: EngineClient
    requests: int = 0
    tokens: int = 0
    latest: StepStats | None = None
    lost: bool = False
    """True once it is not started again."""
    leaving: bool = False
    """True if it gets requests only while no other one serves."""
    role: str = ""
    """``prefill`` or ``decode``; empty: both."""

    async def outputs(self, request: Request) -> AsyncGenerator[Output, None]:
        """Serve a request, and count its tokens meanwhile."""
        tokens = len(request.tokens)
        self.requests += 1
        self.tokens += tokens
        try:
            async with contextlib.aclosing(self.client.submit(request)) as outputs:
                async for output in outputs:
                    tokens += len(output.tokens)
                    self.tokens += len(output.tokens)
                    yield output
        finally:
            self.requests -= 1
            self.tokens -= tokens

    def status(self) -> ReplicaStatus:
        """Return its state."""
        return ReplicaStatus(self.replica, self.client.failure, self.client.heartbeat_age, self.role)
