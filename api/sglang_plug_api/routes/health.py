"""Probes: is the server alive, and can it still produce a token?"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from sglang_plug_api.errors import ApiError
from sglang_plug_api.pooling import probe
from sglang_plug_api.text import TextEngine

PROBE_PRIORITY = 1 << 30


def build(engine: TextEngine) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["operations"])

    @router.get("/health", summary="200 while the engine runs; never waits for the model")
    async def health() -> Response:
        _check_alive(engine)
        return Response(status_code=200)

    @router.get("/ping", summary="As /health")
    async def ping() -> Response:
        return await health()

    @router.get("/ready", summary="200 while new requests are taken; 503 also while the server stops")
    async def ready() -> Response:
        return await health()  # while the server stops, the gate before all routes answers 503

    @router.get("/health_generate", summary="200 once the model has produced a token")
    async def health_generate() -> Response:
        _check_alive(engine)
        try:
            async with asyncio.timeout(engine.config.health_timeout):
                await probe(engine, (0,), new_tokens=1, priority=PROBE_PRIORITY)
        except TimeoutError:
            raise ApiError(f"no answer of the model within {engine.config.health_timeout:g} seconds", 503) from None
        return Response(status_code=200)

    return router


def _check_alive(engine: TextEngine) -> None:
    if engine.client.failure is not None:
        raise ApiError(f"the engine is not running: {engine.client.failure}", 503)
