"""What every HTTP request passes before its route: draining, and the size of its body."""

from __future__ import annotations

import asyncio

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
    """

    def __init__(self, app: ASGIApp, limit: int, timeout: float) -> None:
        self._app, self._limit, self._timeout = app, limit, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await self._refusal().response()(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
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
            if taken > self._limit:
                raise self._refusal()
            return message

        return limited

    def _refusal(self) -> ApiError:
        return ApiError(f"the body is larger than {self._limit} bytes, the most that --max-request-bytes allows", 413)
