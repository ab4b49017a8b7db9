"""What every HTTP request passes before its route: draining, and the size of its body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError


class Gate:
    """Counts requests in flight, and turns new ones away while the server stops."""

    def __init__(self, app: ASGIApp, state: GateState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = self._state
        if state.closing:
            refusal = ApiError("the server is shutting down", 503, headers={"connection": "close"})
            await refusal.response()(scope, receive, send)
            return
        state.in_flight += 1
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not state.closing:
                raise
        finally:
            state.in_flight -= 1


class GateState:
    """Shared by the gate and whoever stops the server."""

    def __init__(self) -> None:
        self.closing = False
        self.in_flight = 0


class BodyLimit:
    """Answers 413 to bodies over ``limit`` bytes, before or while they are read, and 408 to slow ones.

    Args:
        app: what comes after.
        limit: bytes.
        timeout: seconds in which the body must arrive.
        larger: path -> bytes, of routes that have a limit of their own if that is larger.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout: float, larger: Mapping[str, int] | None = None) -> None:
        self._app, self._limit, self._timeout = app, limit, timeout
        self._larger = {} if larger is None else larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = max(self._limit, self._larger.get(scope["path"], 0))
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > limit:
            await self._refusal(limit).response()(scope, receive, send)
            return
        await self._app(scope, self._limited(receive, limit), send)

    def _limited(self, receive: Receive, limit: int) -> Receive:
        deadline = asyncio.get_running_loop().time() + self._timeout
        taken, complete = 0, False

        async def limited() -> Message:
            nonlocal taken, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(f"the body did not arrive within {self._timeout:g} seconds", 408) from None
            taken += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if taken > limit:
                raise self._refusal(limit)
            return message

        return limited

    def _refusal(self, limit: int) -> ApiError:
        option = "--max-request-bytes" if limit == self._limit else "the server"
        return ApiError(f"the body is larger than {limit} bytes, the most that {option} allows", 413)
