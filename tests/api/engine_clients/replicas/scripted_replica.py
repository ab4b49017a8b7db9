"""An engine without a model, which fails when a test lets it fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from sglang_plug import EngineClient, EngineError, Finish, Output, Request, RequestError, StepStats

INFO: Mapping[str, Any] = {
    "architecture": "Scripted",
    "vocab_size": 100,
    "context_length": 64,
    "tasks": ["generate"],
    "fingerprint": [],
    "checkpoint_path": "/first",
    "device": "cpu",
    "max_running_requests": 4,
    "max_total_tokens": 1000,
}


def step(**changes: Any) -> StepStats:
    """Return the statistics of a step."""
    blank: dict[str, Any] = {field.name: 0 for field in fields(StepStats) if field.default is MISSING}
    return StepStats(**{**blank, **changes})


class ScriptedReplica(EngineClient):
    """An engine client that answers requests with ``reply``, a token at a time, and fails when ``die`` is called."""

    def __init__(self, number: int, reply: tuple[int, ...] = (1, 2, 3)) -> None:
        self.number, self.reply = number, reply
        self.info: dict[str, Any] = dict(INFO)
        self.start_error: Exception | None = None
        self.requests: list[str] = []
        self.room: int | None = None
        """Requests that it serves at the same time; it refuses further ones."""
        self.serving = 0
        self.aborted: list[str] = []
        self.controls: list[tuple[str, dict[str, Any]]] = []
        self.listeners: list[Callable[[StepStats], None]] = []
        self.refusals: dict[str, Exception] = {}
        """The error that each control call raises, by name."""
        self.values: dict[str, Any] = {}
        """The answer of each control call, by name."""
        self.may_go_on, self.may_start, self.may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self.may_go_on, self.may_start, self.may_answer):
            event.set()
        self.closed = self.killed = False
        self.seconds_without_heartbeat = 0.0
        self._dead = asyncio.Event()
        self._reason: str | None = None

    def die(self, reason: str = "signal 9") -> None:
        self._reason = reason
        self._dead.set()

    def serve_again(self) -> None:
        """Serve again after a failure that was reported to all waiting callers."""
        self._reason = None

    async def start(self) -> Mapping[str, Any]:
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error
        return self.info

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        if self.room is not None and self.serving >= self.room:
            raise FULL
        self.requests.append(request.id)
        self.serving += 1
        finished = False
        try:
            for index, token in enumerate(self.reply):
                await self._unless_dead(self.may_go_on.wait())
                finished = index == len(self.reply) - 1
                yield Output(id=request.id, tokens=(token,), finish=Finish("length") if finished else None)
        finally:
            self.serving -= 1
            if not finished and self._reason is None:
                self.aborted.append(request.id)

    async def _unless_dead(self, waiting: Any) -> None:
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._dead.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self._reason is not None:
            raise EngineError(self._reason)

    async def control(self, name: str, **arguments: Any) -> Any:
        await self._unless_dead(self.may_answer.wait())
        if name in self.refusals:
            raise self.refusals[name]
        self.controls.append((name, arguments))
        return self.values.get(name, {"success": True})

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self.listeners.append(listener)

    @property
    def failure(self) -> str | None:
        return self._reason

    @property
    def heartbeat_age(self) -> float:
        return self.seconds_without_heartbeat

    async def wait_failed(self) -> str:
        await self._dead.wait()
        return self._reason or ""

    async def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self.killed = True
        self.die("killed")


REFUSAL = RequestError("it does not fit")
FULL = RequestError("the queue is full", 503)
